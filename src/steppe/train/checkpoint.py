"""Checkpoints: one safetensors file with every tensor, and the rest as JSON in its header.

A safetensors file holds numbers and strings, so reading one never runs code; being one file, it is there whole or
not at all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from steppe.errors import RunError
from steppe.plain_files import check_plain
from steppe.runs import write_atomically


def save_checkpoint(path: Path, tree: dict[str, Any]) -> None:
    """Write a tree of dicts, lists, tuples, numbers, strings and tensors, atomically."""
    tensors: dict[str, torch.Tensor] = {}
    structure = json.dumps(_pack(tree, tensors))
    write_atomically(path, save(tensors, metadata={"tree": structure, "sha256": _digest(structure, tensors)}))


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read back what `save_checkpoint` wrote, with tensors on the CPU."""
    try:
        check_plain(path)
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            if header["sha256"] != _digest(header["tree"], tensors):
                raise ValueError("its digest is another")
            tree = _unpack(json.loads(header["tree"]), tensors)
    except (OSError, SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        fix = "remove the file to begin this run again"
        raise RunError(f"the checkpoint is damaged: {error}", where=str(path), fix=fix) from None
    if not isinstance(tree, dict):
        raise RunError("the checkpoint is damaged", where=str(path), fix="remove the file to begin this run again")
    return tree


def save_weights(path: Path, weights: Mapping[str, torch.Tensor]) -> None:
    """Write a model's weights and buffers as safetensors, atomically."""
    write_atomically(path, save({name: _dense(value) for name, value in weights.items()}))


def _digest(structure: str, tensors: dict[str, torch.Tensor]) -> str:
    digest = hashlib.sha256(structure.encode())
    for key in sorted(tensors):
        digest.update(tensors[key].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of its own on the CPU: safetensors refuses memory that two names share."""
    return tensor.detach().cpu().clone(memory_format=torch.contiguous_format)


def _pack(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        key = str(len(tensors))
        tensors[key] = _dense(node)
        return {"tensor": key}
    if isinstance(node, dict):
        return {"dict": [[_pack(key, tensors), _pack(value, tensors)] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return {type(node).__name__: [_pack(value, tensors) for value in node]}
    assert node is None or isinstance(node, str | int | float), f"a checkpoint cannot hold {type(node)}"
    return node


def _unpack(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if not isinstance(node, dict):
        return node
    ((kind, value),) = node.items()
    if kind == "tensor":
        return tensors[value]
    if kind == "dict":
        return {_unpack(key, tensors): _unpack(item, tensors) for key, item in value}
    return {"list": list, "tuple": tuple}[kind](_unpack(item, tensors) for item in value)
