"""What a model costs: parameters, FLOPs, images a second, memory, energy and money."""

from steppe.cost.counts import count_flops, count_parameters
from steppe.cost.energy import Energy, EnergyMeter
from steppe.cost.memory import measure_peak_memory
from steppe.cost.spending import price_of, training_speed
from steppe.cost.throughput import BATCH_SIZES, Throughput, measure_throughput, wait_for

__all__ = [
    "BATCH_SIZES",
    "Energy",
    "EnergyMeter",
    "Throughput",
    "count_flops",
    "count_parameters",
    "measure_peak_memory",
    "measure_throughput",
    "price_of",
    "training_speed",
    "wait_for",
]
