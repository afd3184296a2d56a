"""The processor: learners are threads with a share of the cores, and a task is one list of calls."""
