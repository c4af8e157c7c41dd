"""Access to the folder of a run: its lease, its log and metrics, figures; and what is shown meanwhile."""
