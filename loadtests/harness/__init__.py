"""What bin/loadtest does around Locust: processes, laws, prediction, summary. Knows no locust."""
