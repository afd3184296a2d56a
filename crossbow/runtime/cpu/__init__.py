"""The CPU: learners are threads with a share of the cores, and a task is a list of calls."""
