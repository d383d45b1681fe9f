"""Order -> Plan -> Manifest: the one place that knows the sequence."""
