"""Load tests: Locust in a process of its own, which imports nothing of the front door's.

Importing locust patches sockets, threads and select in its whole process, so neither Tornado nor
pycurl may share one with it. `lib` is what the locustfiles beside it share; `harness` starts engine
stand-ins, front doors and Locust as separate processes and judges what they did (bin/loadtest).
"""
