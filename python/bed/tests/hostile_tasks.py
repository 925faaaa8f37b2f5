"""Tasks for workers that go wrong in every way. Imports nothing heavy."""

import os
import time


def work(_context, task):
    if task == "hangs":
        time.sleep(60)
    if task == "dies":
        os.abort()
    if task == "raises":
        raise ValueError("why")
    return task
