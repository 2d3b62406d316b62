"""Who comes when, with how much work, and what they do when they are refused."""
