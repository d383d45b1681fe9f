"""Accuracy on labelled data: eager's answers once, then any runner's beside them.

    with opened_labelled(measuring, subject, stage) as labelled:     # LabelledFeeds
        accuracy = measure_accuracy(runner, labelled, max_drop=0.005)  # core.findings.Accuracy

Runs share one LabelledFeeds: `bench.labelled` where the order has `measuring`.
"""
