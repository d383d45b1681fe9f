"""Documents made from a manifest: HTML, Markdown, JUnit, SARIF; and two runs beside each other."""
