from __future__ import annotations

import errno
import pickle

import numpy as np
import pytest
import torch

from steppe.errors import ConfigError, nearest, ran_out_of_memory, unknown_name


def test_an_error_says_what_where_and_how():
    error = ConfigError("it is wrong", where="file.toml", fix="put it right")
    assert str(error) == "it is wrong\n  where: file.toml\n  fix:   put it right"
    assert str(ConfigError("alone")) == "alone"
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (ConfigError, str(error))


def test_nearest_names():
    assert nearest("resnet", ["ResNet", "vit"]) == ["ResNet"]
    assert "choose one of: a, b" in str(unknown_name("thing", "zzz", ["b", "a"]))
    assert "choose one of: a, 'a, twice'" in str(unknown_name("variant", "zzz", ["a", "a, twice"]))
    told = str(unknown_name("thing", "zzz", ["b", "a"], see="steppe data"))
    assert told.endswith("choose one of: a, b. `steppe data` lists them all.")
    assert str(unknown_name("thing", "aa", ["a"], see="steppe data")).endswith("'a'? `steppe data` lists them all.")
    assert "`steppe models` lists" in str(unknown_name("model", "zzz", map(str, range(50)), see="steppe models"))


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:80] data. DefaultCPUAllocator: not enough memory: you tried to"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("could not create a primitive"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
    ],
    ids=["python", "cuda", "cpu", "windows", "cuda runtime", "cublas", "cudnn", "onednn", "system"],
)
def test_shortage_of_memory_is_recognised(error):
    assert ran_out_of_memory(error)


def test_real_shortages_of_memory_are_recognised():
    for ask in (lambda: torch.empty(2**58), lambda: np.empty(2**58), lambda: bytearray(2**62)):
        with pytest.raises((RuntimeError, MemoryError)) as raised:
            ask()
        assert ran_out_of_memory(raised.value)


def test_other_errors_are_no_shortage_of_memory():
    for error in (RuntimeError("shape mismatch"), ValueError("out of memory"), OSError(errno.ENOSPC, "No space left")):
        assert not ran_out_of_memory(error)
