"""The configuration of one run: frozen, strict about keys, and hashed into the run's name.

Every field says what it means in its description; the command line takes its flags, help and defaults from here,
so a key is added in one place. Where data lives, which device is used and how many threads run are not here: they
say where a run happens, not what it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from steppe.config.minimizer import MinimizerConfig
from steppe.config.objective import ObjectiveConfig, check_objective
from steppe.config.section import Section, refuse_foreign, with_defaults
from steppe.config.spelling import spell_data, spell_model

OPTIMIZER_DEFAULTS: dict[str, dict[str, float | bool | str]] = {
    "sgd": {"lr": 0.1, "weight_decay": 5e-4, "momentum": 0.9, "decay_norms": True},
    "adam": {"lr": 1e-3, "weight_decay": 0.0, "decay_norms": False},
    "adamw": {"lr": 1e-3, "weight_decay": 0.05, "decay_norms": False},
    "rmsprop": {"lr": 1e-3, "weight_decay": 0.0, "momentum": 0.9, "decay_norms": False},
    "lamb": {"lr": 5e-3, "weight_decay": 0.02, "decay_norms": False},
    "muon": {
        "lr": 1e-3,
        "weight_decay": 0.05,
        "momentum": 0.95,
        "decay_norms": False,
        "rest": "adamw",
        "iterations": 5,
    },
}
"""What each base optimizer's own options are when the user does not say; written out in full in `config.toml`."""


class DataConfig(Section):
    """Which images are learned, and how they are divided."""

    name: Annotated[str, AfterValidator(spell_data)] = Field(
        "digits", min_length=1, description="data set: a name from `steppe data`, a folder, or a .npz"
    )
    val_fraction: float = Field(0.1, gt=0, lt=1, description="share of the training images kept for validation")
    test_fraction: float = Field(0.2, gt=0, lt=1, description="share kept for the test where the source has none")
    split_seed: int = Field(0, ge=0, description="seed of the splits; runs that differ only in `seed` share them")
    image_size: int | None = Field(None, ge=4, le=1024, description="side in pixels; default: the data's own")
    stored_size: int | None = Field(
        None, ge=4, le=2048, description="image folders: side the images are kept at; default: image_size"
    )
    fraction: float | None = Field(
        None, gt=0, le=1, description="learn from this share of each class's training images; shares are nested"
    )
    label_noise: float | None = Field(
        None, gt=0, lt=1, description="replace this share of the training labels by wrong ones, drawn by split_seed"
    )
    statistics: Literal["own", "imagenet", "inception", "efficientnet_lite"] | None = Field(
        None,
        description="mean and deviation that normalise the images: own (of the training images), imagenet, inception, "
        "efficientnet_lite; default: what pretrained weights were trained with where that is known, else own",
    )
    variance: float | None = Field(None, ge=0, description="2-D toys: variance of the noise; default: 1")
    learn_from_val: bool = Field(
        False,
        description="learn from the validation images too: nothing is validated then; a probe cross-validates instead",
    )
    odd_images: Literal["refuse", "convert"] = Field(
        "refuse", description="what to do with images that are not 8-bit RGB or grey (16-bit, CMYK, palette, alpha)"
    )

    @model_validator(mode="after")
    def _noise_is_in_all_that_is_learned(self) -> Self:
        if self.label_noise and self.learn_from_val:
            raise ValueError("label_noise leaves validation labels right, and learn_from_val trains on them; give one")
        return self


UNTRAINED = ("probe", "soup")
"""Modes that compute their weights without steps of an optimizer."""


class ModelConfig(Section):
    """The network."""

    name: Annotated[str, AfterValidator(spell_model)] = Field(
        "vit_tiny_p2", min_length=1, description="model: a name from `steppe models`, or any timm name"
    )
    mode: Literal["scratch", "finetune", "frozen", "last_n_blocks", "probe", "soup"] | None = Field(
        None,
        description="scratch, finetune (all of it), frozen (the head alone), last_n_blocks, probe (logistic regression "
        "on frozen features), soup (the average of several runs, not trained); default: finetune where weights are "
        "given, else scratch",
    )
    weights: str | None = Field(
        None,
        min_length=1,
        description="where finetuning begins: a name of `steppe weights list`, auto (the best at hand), none, a file, "
        "a run folder, run:ID, soup:RUN,RUN, timm, timm:NAME, hf-hub:NAME; without a model the one they belong to",
    )
    last_blocks: int | None = Field(None, gt=0, description="last_n_blocks: how many blocks are trained with the head")
    penalty: float | None = Field(
        None, gt=0, description="probe: weight of its squared weights; default: chosen by cross-validation"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate before the head")
    block_dropout: float = Field(
        0.0, ge=0, lt=1, description="dropout after each dense layer of a transformer or mixer, or inside a WRN block"
    )
    attention_dropout: float = Field(0.0, ge=0, lt=1, description="dropout rate of the attention weights")
    drop_path: float = Field(0.0, ge=0, lt=1, description="stochastic-depth rate")
    init: Literal["jax", "timm", "torch"] | None = Field(
        None,
        description="initial weights of a transformer or mixer: jax (Xavier), timm (normal, 0.02) or torch (torch's "
        "own for each layer); default: the family's",
    )
    pos_embed_std: float | None = Field(
        None, gt=0, description="standard deviation of initial position embeddings; default: 0.02, and 0.2 for cct"
    )

    @model_validator(mode="before")
    @classmethod
    def _weights_decide_mode(cls, values: Any) -> Any:
        """Training from scratch is the absence of a mode, so that saying it does not rename a run."""
        if not isinstance(values, Mapping):
            return values
        values = dict(values)
        if values.get("weights") == "none":
            values["weights"] = None
        if values.get("mode") == "scratch":
            if values.get("weights") is not None:
                raise ValueError("weights are given but mode is scratch; set mode to finetune, frozen or last_n_blocks")
            values["mode"] = None
        elif values.get("mode") is None and values.get("weights") is not None:
            values["mode"] = "finetune"
        return values

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> Self:
        if self.mode is not None and self.weights is None:
            raise ValueError(f"mode {self.mode!r} begins from trained weights; give weights")
        if (self.mode == "last_n_blocks") != (self.last_blocks is not None):
            raise ValueError("mode 'last_n_blocks' and last_blocks go together; give both or neither")
        if (self.mode == "soup") != (self.weights is not None and self.weights.startswith("soup:")):
            raise ValueError("mode 'soup' and weights 'soup:RUN,RUN' go together; give both or neither")
        if self.penalty is not None and self.mode != "probe":
            raise ValueError("penalty belongs to mode 'probe'")
        if self.weights is not None and (self.init or self.pos_embed_std):
            raise ValueError("init and pos_embed_std draw fresh weights, but trained weights are given; leave out one")
        return self


class OptimizerConfig(Section):
    """The base optimizer, which the minimizer wraps."""

    name: Literal["sgd", "adam", "adamw", "rmsprop", "lamb", "muon"] = Field(
        "adamw",
        description="sgd, adam, adamw, rmsprop, lamb, or muon (hidden matrices and convolutions orthogonalised)",
    )
    lr: float | None = Field(
        None, gt=0, description="peak learning rate; default: 0.1 for sgd, 0.005 for lamb, else 0.001"
    )
    weight_decay: float | None = Field(
        None, ge=0, description="default: 0.0005 for sgd, 0.05 for adamw and muon, 0.02 for lamb, else 0"
    )
    momentum: float | None = Field(
        None, ge=0, lt=1, description="sgd, rmsprop and muon; default: 0.9, 0.95 for muon, which always has Nesterov's"
    )
    nesterov: bool = Field(False, description="sgd: Nesterov's momentum, a step ahead of the plain one")
    decay_norms: bool = Field(
        False, description="decay biases and the weights of norms too; default: yes for sgd, no for the others"
    )
    layer_decay: float | None = Field(
        None,
        gt=0,
        le=1,
        description="learning rate of each block as a share of that of the block above it, such as 0.75; "
        "the head has the peak rate; default: one rate for all",
    )
    head_lr_factor: float | None = Field(
        None, gt=0, description="learning rate of the head as a multiple of lr, such as 10; default: 1"
    )
    rest: Literal["adamw", "sgd"] | None = Field(
        None, description="muon: what trains the head, norms, biases and embeddings, adamw or sgd; default: adamw"
    )
    rest_lr: float | None = Field(None, gt=0, description="muon: peak learning rate of these; default: lr")
    iterations: int | None = Field(None, ge=1, le=20, description="muon: Newton-Schulz iterations; default: 5")
    hold_norm: bool = Field(
        False,
        description="muon: keep the norm of each orthogonalised weight; lr is then the share of it that a step changes",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        return with_defaults(values, OPTIMIZER_DEFAULTS, cls.model_fields["name"].default)

    @model_validator(mode="after")
    def _only_own_options(self) -> Self:
        refuse_foreign(self, self.name, OPTIMIZER_DEFAULTS)
        if self.nesterov and (self.name != "sgd" or not self.momentum):
            raise ValueError("nesterov belongs to sgd with momentum")
        if self.name != "muon" and (self.hold_norm or self.rest_lr is not None):
            raise ValueError("hold_norm and rest_lr belong to muon")
        return self


class ScheduleConfig(Section):
    """The learning rate over the run, as a function of the share of the budget spent."""

    name: Literal["constant", "cosine", "linear", "step"] = Field(
        "cosine", description="constant, cosine, linear, step"
    )
    warmup: float = Field(0.0, ge=0, lt=1, description="share of the budget with a linearly rising rate")
    final: float = Field(0.0, ge=0, le=1, description="cosine and linear: the last rate, as a share of the peak")
    hold: float = Field(
        0.0, ge=0, lt=1, description="cosine and linear: share of the budget at the end that keeps the last rate"
    )
    drop_every: float = Field(1 / 3, gt=0, le=1, description="step: share of the budget between two drops")
    gamma: float = Field(0.1, gt=0, le=1, description="step: factor of each drop")

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.hold and self.name not in ("cosine", "linear"):
            raise ValueError(f"hold means nothing to {self.name!r}: it belongs to cosine and linear")
        if self.warmup + self.hold >= 1:
            raise ValueError("warmup and hold are shares of one budget, and leave nothing of it")
        return self


class AugmentConfig(Section):
    """Random changes of the training images, in the order of the keys."""

    crop_padding: int = Field(0, ge=0, le=64, description="pad by so many pixels, then crop back at a random place")
    crop_reflect: bool = Field(False, description="crop_padding: pad with the reflected image; default: with black")
    resized_crop: float | None = Field(
        None, gt=0, le=1, description="Inception-style crop: smallest share of the area, such as 0.08; default: off"
    )
    flip: bool = Field(False, description="mirror half of the images")
    alternate_flip: bool = Field(
        False,
        description="flip: mirror each image in every second epoch, half of them in the first; default: at random",
    )
    autoaugment: Literal["cifar10", "imagenet"] | None = Field(
        None, description="AutoAugment policy, cifar10 or imagenet; default: off"
    )
    randaugment: int = Field(0, ge=0, le=8, description="RandAugment: operations on each image; 0 is off")
    randaugment_magnitude: int | None = Field(
        None, ge=0, le=30, description="RandAugment: strength on the paper's scale; default: 9"
    )
    trivialaugment: bool = Field(
        False, description="TrivialAugment (wide): one operation of any strength on each image"
    )
    colour_jitter: float = Field(
        0.0, ge=0, description="change brightness, contrast and saturation by factors up to 1 ± this; 0 is off"
    )
    cutout: int = Field(0, ge=0, description="blank a square of so many pixels a side")
    erasing: float = Field(
        0.0, ge=0, le=1, description="blank a box of 2 to 33 % of the area in this share of the images; 0 is off"
    )
    mixup: float = Field(0.0, ge=0, description="mix pairs of images, share drawn from Beta(a, a); 0 is off")
    cutmix: float = Field(0.0, ge=0, description="paste a box of another image, area from Beta(a, a); 0 is off")
    mixup_probability: float | None = Field(
        None, gt=0, le=1, description="share of the batches that mixup or cutmix touch; default: all"
    )

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.randaugment_magnitude is not None and not self.randaugment:
            raise ValueError("randaugment_magnitude means nothing without randaugment, its number of operations")
        if self.crop_reflect and not self.crop_padding:
            raise ValueError("crop_reflect means nothing without crop_padding, whose border it fills")
        if self.alternate_flip and not self.flip:
            raise ValueError("alternate_flip means nothing without flip, the mirroring that it arranges")
        if self.mixup_probability is not None and not (self.mixup or self.cutmix):
            raise ValueError("mixup_probability means nothing without mixup or cutmix")
        if self.crop_padding and self.resized_crop:
            raise ValueError("crop_padding and resized_crop are two ways to crop; give one")
        policies = [key for key in ("autoaugment", "randaugment", "trivialaugment") if getattr(self, key)]
        if len(policies) > 1:
            raise ValueError(f"{' and '.join(policies)} are {len(policies)} policies; give one")
        return self

    @property
    def mixes(self) -> bool:
        """Whether targets are probabilities, (B, classes), instead of labels."""
        return self.mixup > 0 or self.cutmix > 0


class EvaluationConfig(Section):
    """How the trained network is tested, beside the plain test that every run ends with."""

    tta: Literal["none", "flip", "flip_translate"] | None = Field(
        None,
        description="test-time augmentation, a second test: flip (image and mirror), flip_translate (also shifted "
        "by a pixel either way); default: none",
    )

    @field_validator("tta")
    @classmethod
    def _none_is_no_augmentation(cls, tta: str | None) -> str | None:
        return None if tta == "none" else tta


class BudgetConfig(Section):
    """What the run may spend: one of the keys. Default: 20 epochs."""

    epochs: int | None = Field(None, gt=0, le=10**6, description="passes over the training images; default: 20")
    gradient_evaluations: int | None = Field(None, gt=0, le=10**12, description="batch gradients; a SAM step costs two")
    seconds: float | None = Field(None, gt=0, description="seconds of training, without compiling and evaluating")

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and not any(v is not None for v in values.values()):
            return {"epochs": 20}
        return values

    @model_validator(mode="after")
    def _just_one(self) -> Self:
        given = [k for k in type(self).model_fields if getattr(self, k) is not None]
        if len(given) > 1:
            raise ValueError(f"a run has one budget, but {' and '.join(given)} are given")
        return self


class RunConfig(Section):
    """One training, from one configuration and one seed."""

    seed: int = Field(0, ge=0, lt=2**31, description="seed of the weights, the order of the images and dropout")
    batch_size: int = Field(64, gt=0, le=10**6, description="images per step")
    precision: Literal["float32", "bfloat16"] = Field("float32", description="float32, or bfloat16 autocast")
    accumulate: int | None = Field(None, gt=0, description="compute a batch in so many parts: same update, less memory")
    ema: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="average the weights with this decay, such as 0.999, and evaluate and keep the average",
    )
    swa: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="average the weights at the ends of the epochs in this last share of the budget, such as 0.25",
    )
    lookahead: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Lookahead: slow weights go this share of the way to the trained ones, and training goes on there",
    )
    lookahead_every: int | None = Field(None, gt=0, description="lookahead: steps between two moves; default: 5")
    lookahead_ramp: bool = Field(
        False, description="lookahead: let the share fall from 1 to this, with the cube of the spent budget"
    )
    patience: int | None = Field(None, gt=0, description="stop after so many epochs without a better validation loss")
    sigmoid_loss: bool = Field(False, description="a sigmoid for every class instead of a softmax")
    label_smoothing: float = Field(0.0, ge=0, lt=1, description="share of the target spread over all classes")
    clip_norm: float | None = Field(None, gt=0, description="clip the norm of the final gradient; default: off")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    minimizer: MinimizerConfig = Field(default_factory=lambda: MinimizerConfig.model_validate({}))
    optimizer: OptimizerConfig = Field(default_factory=lambda: OptimizerConfig.model_validate({}))
    objective: ObjectiveConfig = ObjectiveConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    augment: AugmentConfig = AugmentConfig()
    budget: BudgetConfig = Field(default_factory=lambda: BudgetConfig.model_validate({}))
    test: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="before")
    @classmethod
    def _radius_of_msam(cls, values: Any) -> Any:
        """MSAM's published radius is one for SGD; with it a ViT under AdamW does not learn.

        A minimizer that was made by itself has its radius already.
        """
        if not isinstance(values, Mapping):
            return values
        minimizer, optimizer = values.get("minimizer"), values.get("optimizer")
        base = optimizer.get("name") if isinstance(optimizer, Mapping) else getattr(optimizer, "name", None)
        if base == "sgd" or not isinstance(minimizer, Mapping) or minimizer.get("name") != "msam":
            return values
        return values if minimizer.get("rho") is not None else {**values, "minimizer": {**minimizer, "rho": 0.3}}

    @model_validator(mode="before")
    @classmethod
    def _untrained_sees_every_image_once(cls, values: Any) -> Any:
        if not isinstance(values, Mapping) or values.get("budget"):
            return values
        model = values.get("model")
        mode = model.get("mode") if isinstance(model, Mapping) else getattr(model, "mode", None)
        return {**values, "budget": {"epochs": 1}} if mode in UNTRAINED else values

    @model_validator(mode="after")
    def _untrained_is_plain(self) -> Self:
        """A probe is solved and a soup averaged, not trained: settings of training would be ignored."""
        if self.model.mode not in UNTRAINED:
            return self
        if self.model.mode == "soup" and self.data.learn_from_val:
            raise ValueError("mode 'soup' learns no images; leave learn_from_val out")
        may_flip = {"flip": False} if self.model.mode == "probe" else {}
        changed = {
            "minimizer": self.minimizer.name != "base",
            "objective": bool(self.objective.name),
            "augment": self.augment.model_copy(update=may_flip) != AugmentConfig(),
            **{key: getattr(self, key) is not None for key in self._AVERAGES},
            "accumulate": self.accumulate is not None,
            "sigmoid_loss": self.sigmoid_loss,
            "label_smoothing": self.label_smoothing > 0,
            "clip_norm": self.clip_norm is not None,
            "patience": self.patience is not None,
        }
        if names := ", ".join(name for name, is_changed in changed.items() if is_changed):
            does = "solves a logistic regression" if self.model.mode == "probe" else "averages weights"
            raise ValueError(f"mode {self.model.mode!r} {does}, to which {names} means nothing")
        return self

    @model_validator(mode="after")
    def _one_average(self) -> Self:
        given = [key for key in self._AVERAGES if getattr(self, key) is not None]
        if len(given) > 1:
            raise ValueError(f"a run keeps one average of its weights, but {' and '.join(given)} are given")
        if self.lookahead is None and (self.lookahead_every or self.lookahead_ramp):
            raise ValueError("lookahead_every and lookahead_ramp mean nothing without lookahead")
        return self

    _AVERAGES: ClassVar = ("ema", "swa", "lookahead")

    @model_validator(mode="after")
    def _patience_needs_validation(self) -> Self:
        if self.patience and not self.validates:
            raise ValueError("patience needs validation images, and learn_from_val trains on them; give one of the two")
        return self

    @model_validator(mode="after")
    def _rates_differ_between_layers_that_learn(self) -> Self:
        for key in ("layer_decay", "head_lr_factor"):
            if getattr(self.optimizer, key) is not None and self.model.mode in ("frozen", *UNTRAINED):
                raise ValueError(f"{key} means nothing to mode {self.model.mode!r}: at most the head learns")
        return self

    @model_validator(mode="after")
    def _objective_fits(self) -> Self:
        check_objective(self)
        return self

    @property
    def validates(self) -> bool:
        """Whether the run has validation figures: those of images it did not learn, or a probe's cross-validation."""
        return not self.data.learn_from_val or self.model.mode == "probe"

    @property
    def expected_gradients(self) -> float:
        """About how many batch gradients a step costs, for estimates and progress; a run counts its own."""
        gradients = self.minimizer.expected_gradients
        if self.objective.name == "adversarial":
            return gradients + 1 - self.minimizer.sharp_share
        if self.objective.name == "contrastive":
            share = self.objective.pretrain or 0.0
            return 2 * gradients * share + 1 - share
        return gradients

    @property
    def hash(self) -> str:
        """Ten hexadecimal digits that change with anything that changes the result.

        A field that is off by default (None, False, 0) does not count while it is off, so that a later version may
        add features without giving every earlier run another name.
        """
        text = json.dumps(_canonical(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def run_id(self) -> str:
        """The run's folder name: what a person wants to see first, then the hash."""
        words = [self.data.name.rstrip("/").rsplit("/", 1)[-1], self.model.name, self.minimizer.name]
        words += [self.objective.name] if self.objective.name else []
        return "-".join([*(_slug(w) for w in words), f"s{self.seed}", self.hash])

    def without_seed(self) -> RunConfig:
        """The configuration that all seeds of one cell of a study share."""
        return self.model_copy(update={"seed": 0})


def derive_seed(seed: int, *words: str | int) -> int:
    """Give every use of randomness a stream of its own, from the run's seed and where in the run it stands.

    Nothing random is carried from step to step, so a run resumed at any step draws what it would have drawn.
    """
    text = ":".join(map(str, (seed, *words)))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest()) >> 1


_LATER_SECTIONS = ("objective", "test")
"""Sections that earlier versions did not have: left out of the hash while all of it is off."""


def _canonical(section: Section) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, Section):
            inner = _canonical(value)
            if inner or key not in _LATER_SECTIONS:
                out[key] = inner
        elif not (value == field.default and not value):
            out[key] = value
    return out


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.]+", "_", text).strip("_.")[:40] or "x"
