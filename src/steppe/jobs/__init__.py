"""Jobs: what is to be made, and who makes it, in this process, in worker processes or on a Ray cluster."""

from steppe.jobs.job import ENDS, Event, Executor, Job, Link
from steppe.jobs.local import Here, Processes
from steppe.jobs.ray import RayWorkers, check_cluster
from steppe.jobs.slots import default_workers, threads_for

__all__ = [
    "ENDS",
    "Event",
    "Executor",
    "Here",
    "Job",
    "Link",
    "Processes",
    "RayWorkers",
    "check_cluster",
    "default_workers",
    "threads_for",
]
