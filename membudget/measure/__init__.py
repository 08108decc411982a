"""What a live machine holds: readings, the guard around a measurement, and the measurements themselves.

The only place that imports torch, and only in the worker's own process.
"""
