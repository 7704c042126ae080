"""DCA: diversity and covariance-aware prompt learning (arXiv:2503.01531, 2025).

Songlin Dong, Zhengdong Zhou, Chenhao Ding, Yuhang He, Xinyuan Gao, Alex Kot, Yihong Gong: Diversity Covariance-Aware
Prompt Learning for Vision-Language Models.

M text contexts of different lengths and V visual tokens are learned. Training uses the
squared Euclidean distance d_e, separately for each prompt:

    p_m(y | x) = softmax_y( τ / (d_e(f, u_{m,y}) + ε) )
    L = Σ_m CE(p_m, y) + α L_in + β L_ts
    L_in = Σ_i (f_i - c_{y_i})ᵀ Σ̂_{y_i}⁻¹ (f_i - c_{y_i})
    L_ts = - Σ_{i≠j} ‖u_i - u_j‖²

Testing replaces d_e by the Mahalanobis distance d_m, whose covariances come from the training
images through the final visual tokens, and averages the M probabilities.

What the paper leaves open is decided by `reading` (docs/math.md, `OPEN_POINTS`); any option that is set wins over it:

    own      the default, for any dataset: means, which do not grow with the number of classes, and covariances about
             the mean x̄ of a class's images, or about its text feature u where training images that are left out
             speak for it (shared/center.py): Σ then has the term n/(n - 1) (x̄ - u)(x̄ - u)ᵀ, through which the image
             mean enters the head, which is more than covariances alone
    plots    means, and covariances about x̄, with which α, β and γ can matter as little as in the paper's plots
    printed  the sums above, the covariance about x̄ and contexts for each class, exactly as printed

The finished head can measure the distance of an image to the text of each class, its images, or both (`anchors`):

    text    u_{m,y}
    means   x̄_y / ‖x̄_y‖, the mean of the training features of a class
    both    (u_{m,y} + x̄_y / ‖x̄_y‖) / ‖ · ‖

On an image tower that takes no tokens (the ResNets of CLIP) the text prompts and the covariance head remain; f is then
the feature of the frozen tower.

With very many classes, a step can sample some of them (`classes_per_step`), an approximation that costs less text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Self, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from dca.backbones.dual_encoder import DualEncoder
from dca.backbones.encoder import Ability
from dca.core.errors import UserError
from dca.core.hints import set_option
from dca.core.options import option, replace_options
from dca.core.text import pluralize
from dca.methods.base import Batch, Head, OptimizerName, Problem, Step, Support, TrainingOptions
from dca.methods.shared import losses
from dca.methods.shared.center import Center, choose_center
from dca.methods.shared.class_features import ClassFeatures, check_class_features
from dca.methods.shared.gaussian import FLOOR_HELP, Covariance, Gaussian, name_classes_in_error, paper_gammas
from dca.methods.shared.gaussian import dca_gaussian as dca_gaussian
from dca.methods.shared.heads import ClassPrecisions, MahalanobisHead, PromptHead, prompt_logits
from dca.methods.shared.losses import IntraClass
from dca.methods.shared.metric import Metric, Score
from dca.methods.shared.prompts import TextPrompts, VisualTokens
from dca.methods.shared.text_feature_methods import ClassFeatureMethod

Reading = Literal["own", "plots", "printed"]
READINGS: tuple[Reading, ...] = get_args(Reading)


Anchors = Literal["text", "means", "both"]


PHRASES = ("a photo of", "a drawing of a", "this is a photo of", "this is a photo of a")
# Dataset -> (α, β, learning rate), the paper's parameter table.
PAPER_TABLE = {
    "dtd": (5.0, 0.5, 20.0),
    "fgvc_aircraft": (5.0, 0.01, 2.0),
    "sun397": (100.0, 0.01, 20.0),
    "caltech101": (10.0, 0.01, 0.2),
    "oxford_pets": (1.0, 0.1, 0.02),
    "food101": (1.0, 0.5, 20.0),
    "oxford_flowers": (10.0, 0.5, 0.002),
    "ucf101": (5.0, 0.1, 20.0),
    "stanford_cars": (10.0, 0.5, 0.2),
    "imagenet": (10.0, 0.1, 2.0),
    "eurosat": (100.0, 2.0, 20.0),
}
LARGE_DATASETS = {"imagenet", "sun397"}
# The medians of that table, for datasets that are not in it.
OWN_ALPHA, OWN_BETA = 10.0, 0.1
# Source of the options that follow from `recipe`.
TABLE = "ours; recipe=paper: its table"


@dataclass(frozen=True, kw_only=True)
class DCAOptions(TrainingOptions):
    """Options of DCA; symbols as in the paper."""

    recipe: Literal["own", "paper"] = option("own", "own: for any dataset; paper: its table, by dataset")
    reading: Reading = option("own", "which values to take where the paper leaves them open: see the readings below")
    n_prompts: int = option(4, "M, text contexts learned", low=1, high=1024, source="paper")
    phrases: tuple[str, ...] = option(
        PHRASES, "initial words of the contexts; further contexts are random", source="paper"
    )
    random_length: int = option(4, "tokens of a random context", low=1, high=1024)
    contexts: Literal["unified", "class"] | None = option(
        None, "contexts shared by all classes, or M contexts per class; auto: by reading", source="our reading"
    )
    suffix: str = option(".", "text after the class name", source="CoOp")
    visual_tokens: int = option(16, "V, learned tokens in the image tower", low=0, high=4096, source="paper")
    tau: float | None = option(None, "τ, scale of the softmax; auto: the checkpoint's", low=0, source="CLIP")
    eps: float = option(1e-6, "ε, added to the distance before it is inverted", low=0)
    score: Score = option("inverse", "softmax of τ/(d+ε) or of -τd/2", source="paper, eq. 8")
    train_metric: Metric = option("euclidean", "distance in training", source="paper")
    test_metric: Metric = option("mahalanobis", "distance of the finished model", source="paper")
    alpha: float | None = option(None, "α, weight of L_in; auto: by recipe", low=0, source=TABLE)
    beta: float | None = option(None, "β, weight of L_ts; auto: by recipe", low=0, source=TABLE)
    intra: losses.Intra = option("mahalanobis", "form of L_in", source="paper, eq. 11")
    intra_features: Literal["clip", "prompted"] = option(
        "clip", "centres of L_in from CLIP alone, or with the initial visual tokens", source="our reading"
    )
    intra_reduction: losses.IntraReduction | None = option(
        None, "reduction of L_in over images and dimensions; auto: by reading", source="our reading"
    )
    separation_reduction: losses.SeparationReduction | None = option(
        None, "reduction of L_ts over pairs; auto: by reading", source="our reading"
    )
    separation_pairs: int = option(0, "random pairs of L_ts per step; 0: all pairs", low=0, source="our reading")
    covariance: Covariance = option(
        "class", "covariance of the head: one per class, shrunk by γ, or one for all", source="paper"
    )
    anchors: Anchors = option(
        "text",
        "what the head measures distances to: texts, mean image features of the classes, or both",
        source="paper",
    )
    center: Literal["chosen", "text", "visual"] | None = option(
        None,
        "centre of the covariance of a class; chosen: on training images that are left out; auto: by reading",
        source="our reading",
    )
    gamma1: float | None = option(
        None, "γ1 of the head, shrinkage toward the identity; auto: by shots", low=0, source="paper"
    )
    gamma2: float | None = option(
        None, "γ2 of the head, shrinkage of the off-diagonal; auto: by shots", low=0, source="paper"
    )
    normalize: bool = option(True, "turn covariances into correlations", source="paper; as in FeCAM")
    floor: float = option(0.0, FLOOR_HELP, low=0, high=1)
    head_views: int = option(
        0, "augmented views per training image in the head; 0: the evaluation view", low=0, source="our reading"
    )
    classes_per_step: int = option(
        0,
        "classes per step: those of the batch, and others drawn at random (less memory, approximate); 0: all",
        low=0,
    )
    epochs: int | None = option(
        None,
        "passes over the training images; auto: 80 for 1 shot, 100 up to 4, else 200; at most 100 for own images",
        low=0,
        source="paper; the 100 for own images are ours",
    )
    batch_size: int | None = option(
        None, "images per step; auto: 32, 64 for ImageNet and SUN397", low=1, source="paper"
    )
    learning_rate: float | None = option(
        None,
        "learning rate after warm-up; auto: from the gradient (recipe own), by dataset (recipe paper)",
        low=0,
        source=TABLE,
    )
    optimizer: OptimizerName = option("sgd", "optimiser", source="paper")
    warmup_epochs: int = option(5, "epochs of warm-up", low=0, source="paper")
    warmup_rate: float = option(1e-5, "constant learning rate of the warm-up", low=0, source="paper")


def paper_epochs(shots: int) -> int:
    """Epochs of the paper for a number of shots."""
    return 80 if shots <= 1 else 100 if shots <= 4 else 200


def default_epochs(shots: int) -> int:
    """Epochs for other datasets: at most 100, which cost a third of a point against 200."""
    return min(paper_epochs(shots), 100)


class DCA(ClassFeatureMethod):
    """Diversity and covariance-aware prompt learning."""

    name = "dca"
    paper = (
        "Songlin Dong, Zhengdong Zhou, Chenhao Ding, Yuhang He, Xinyuan Gao, Alex Kot, Yihong Gong, Diversity "
        "Covariance-Aware Prompt Learning for Vision-Language Models, arXiv:2503.01531, 2025"
    )
    needs = frozenset({Ability.IMAGE_FEATURES, Ability.TEXT_PROMPTS})
    trains_on = "images"
    Options = DCAOptions
    options: DCAOptions
    results = MappingProxyType({**ClassFeatureMethod.results, "text_is_center": torch.bool})
    text_is_center: Tensor
    head_options = (
        "gamma1",
        "gamma2",
        "floor",
        "covariance",
        "center",
        "anchors",
        "normalize",
        "test_metric",
        "score",
        "tau",
        "eps",
    )

    @classmethod
    def resolve(cls, options: DCAOptions, problem: Problem) -> DCAOptions:
        """Fill in values by reading, shots and dataset. The training loop finds the learning rate of recipe `own`."""
        alpha, beta, rate = OWN_ALPHA, OWN_BETA, None
        if options.recipe == "paper":
            if problem.dataset not in PAPER_TABLE:
                raise UserError(
                    f"recipe=paper has no values for {problem.dataset or 'data that is no public dataset'}",
                    hint=[f"it has values for {', '.join(PAPER_TABLE)}", set_option("recipe", "own")],
                )
            alpha, beta, rate = PAPER_TABLE[problem.dataset]
        if options.classes_per_step and options.train_metric == "mahalanobis":
            hint = [set_option("classes_per_step", 0), set_option("train_metric", "euclidean")]
            raise UserError("classes_per_step and train_metric=mahalanobis cannot be combined", hint=hint)
        gamma1, gamma2 = paper_gammas(problem.shots)
        defaults: dict[str, Any] = {
            "alpha": alpha,
            "beta": beta,
            "learning_rate": rate,
            "epochs": paper_epochs(problem.shots) if problem.dataset in PAPER_TABLE else default_epochs(problem.shots),
            "batch_size": 64 if problem.dataset in LARGE_DATASETS else 32,
            "gamma1": gamma1,
            "gamma2": gamma2,
            **reading_options(options.reading),
        }
        return options.fill_unset(**defaults)

    @classmethod
    def explain_options(cls) -> dict[str, list[str]]:
        """Add what each reading takes where the paper leaves it open, and why."""
        lines = [f"{p.option}: {p.values}. The paper: {p.paper}. Why: {p.why}." for p in OPEN_POINTS]
        heading = f"readings of what the paper leaves open, --set reading={'|'.join(READINGS)}"
        alpha = "alpha, beta, learning_rate: by recipe (own|paper), whatever the reading."
        return {**super().explain_options(), heading: [*lines, alpha]}

    def __init__(self, clip: DualEncoder, problem: Problem, options: DCAOptions) -> None:
        if Ability.IMAGE_TOKENS not in clip.abilities:
            options = replace_options(options, visual_tokens=0)
        super().__init__(clip, problem, options)
        missing = max(options.n_prompts - len(options.phrases), 0)
        self.text = TextPrompts(
            clip,
            problem.names,
            [*options.phrases[: options.n_prompts], *[options.random_length] * missing],
            per_class=options.contexts == "class",
            suffix=options.suffix,
            generator=self.generator("text"),
        )
        self.visual = VisualTokens(clip, options.visual_tokens, self.generator("visual"))
        self.text_is_center = torch.tensor(False, device=clip.device)

    def notes(self) -> list[str]:
        """Whether the image tower takes no tokens."""
        if Ability.IMAGE_TOKENS in self.clip.abilities:
            return []
        return [
            f"The image tower of {self.clip.source} takes no tokens: DCA learns text prompts alone, and its "
            "covariances are those of the frozen image features."
        ]

    @property
    def tau(self) -> float:
        """τ: the option, or the value of the checkpoint."""
        return self.clip.tau if self.options.tau is None else self.options.tau

    def encode(self, pixels: Tensor) -> Tensor:
        """f: unit image features through the visual tokens, (B, D)."""
        return F.normalize(self.clip.encode_image(pixels, tokens=self.visual.as_extra_tokens()), dim=-1)

    def encode_text(self, classes: Sequence[int] | None = None) -> Tensor:
        """u: unit text features, (M, C, D), of all classes or of some of them."""
        return F.normalize(self.text.encode(self.clip, classes), dim=-1)

    def text_contexts(self) -> Sequence[Tensor]:
        """The M contexts."""
        return list(self.text.contexts)

    @property
    def feature_views(self) -> int:
        """The option `head_views`."""
        return self.options.head_views

    def prepare(self, support: Support) -> None:
        """Choose the centre of the head's covariances, and compute the constants of L_in, if anything reads them."""
        self._require_definite(support)
        self.text_is_center = torch.tensor(self._choose_center(support) == "text", device=self.clip.device)
        if not self.options.alpha and self.options.train_metric != "mahalanobis":
            return
        names, shots = self.problem.names, self.problem.shots
        if self.options.intra_features == "prompted":
            self._intra_class = IntraClass.from_features(self.encode_all(support), support.labels, names, shots)
        else:
            self._intra_class = IntraClass.from_support(support, names, shots)

    def _require_definite(self, support: Support) -> None:
        """Raise before training if the head's covariances of CLIP's own features are not positive definite."""
        names, options = self.problem.names, self.options
        if options.test_metric == "mahalanobis" and options.covariance == "class":
            features = F.normalize(support.frozen_features(), dim=-1)
            shots = ClassFeatures.group(features, support.labels, len(names))
            with name_classes_in_error(names):
                ClassPrecisions.from_features(shots, self._head_gaussian(), features.dtype)

    def _choose_center(self, support: Support) -> Center:
        """The centre that training images speak for, whatever the options of the head: those can be changed later."""
        features = F.normalize(support.frozen_features(), dim=-1)
        with torch.no_grad(), name_classes_in_error(self.problem.names):
            return choose_center(
                self.encode_text(),
                features,
                support.labels,
                support.groups,
                shots=self.problem.shots,
                tau=self.clip.tau,
            )

    @property
    def center(self) -> Center:
        """Centre of the covariances of the head: the option, or the one that was chosen before training."""
        assert self.options.center is not None
        if self.options.center == "chosen":
            return "text" if self.text_is_center else "visual"
        return self.options.center

    def _head_gaussian(self) -> Gaussian:
        """The head's covariances by the options."""
        options = self.options
        return dca_gaussian(
            options.gamma1,
            options.gamma2,
            self.problem.shots,
            covariance=options.covariance,
            normalize=options.normalize,
            floor=options.floor,
        )

    def step(self, batch: Batch) -> Step:
        """L_cls, α L_in and β L_ts of one batch."""
        sampled = self._draw_classes(batch)
        f, u = self.encode(batch.inputs), self.encode_text(sampled.classes if sampled else None)
        logits = self._train_logits(f, u)
        terms = self.loss_terms(f, u, logits, batch, sampled.labels if sampled else batch.labels)
        probabilities = logits.detach().softmax(dim=-1).mean(dim=0)
        return Step(terms, sampled.to_all_classes(probabilities) if sampled else probabilities)

    def loss_terms(self, f: Tensor, u: Tensor, logits: Tensor, batch: Batch, labels: Tensor) -> dict[str, Tensor]:
        """Weighted loss terms by name, from what the step has computed; for methods with other terms.

        f: image features (B, D). u: text features (M, C, D) of the classes that compete. logits: (M, B, C).
        labels: (B,), among these classes; `batch.labels` are among all.
        """
        terms = {
            "cls": self.classification_loss(logits, labels),
            "in": self.intra_class_loss(f, batch.labels),
            "ts": self.separation_loss(u, batch.generator),
        }
        return {name: term for name, term in terms.items() if term is not None}

    def classification_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """L_cls of logits (M, B, C) and labels (B,)."""
        return losses.classification(logits, labels)

    def intra_class_loss(self, f: Tensor, labels: Tensor) -> Tensor | None:
        """α L_in of image features (B, D) and labels (B,); None if α is 0."""
        options = self.options
        if not options.alpha:
            return None
        assert options.intra_reduction is not None
        return options.alpha * self._intra_class(f, labels, options.intra, options.intra_reduction)

    def separation_loss(self, u: Tensor, generator: torch.Generator) -> Tensor | None:
        """β L_ts of text features (M, C, D); None if β is 0. generator: for random pairs."""
        options = self.options
        if not options.beta:
            return None
        assert options.separation_reduction is not None
        flat, pairs = u.flatten(0, 1), None
        if options.separation_pairs and len(flat) > 1:
            pairs = losses.draw_pairs(len(flat), options.separation_pairs, generator)
        return options.beta * losses.text_separation(flat, reduction=options.separation_reduction, pairs=pairs)

    def _draw_classes(self, batch: Batch) -> SampledClasses | None:
        """The classes that compete in this step; None for all."""
        count, total = self.options.classes_per_step, len(self.problem.names)
        return SampledClasses.draw(batch.labels, total, count, batch.generator) if 0 < count < total else None

    def finish(self, support: Support) -> None:
        """Store text features, and the training images through the final visual tokens."""
        labels = support.labels.repeat(max(self.feature_views, 1))
        features = ClassFeatures.group(
            self.encode_all(support, views=self.feature_views), labels, len(self.problem.names)
        )
        self.store(self.encode_text().detach(), features)

    def class_parameters(self) -> set[str]:
        """The contexts, if each class has its own."""
        own = self.options.contexts == "class"
        return {f"text.contexts.{m}" for m in range(len(self.text.contexts))} if own else set()

    def _train_logits(self, f: Tensor, u: Tensor) -> Tensor:
        """Logits (M, B, C) of a training step: f (B, D) under text features u (M, C, D)."""
        options = self.options
        return prompt_logits(
            f,
            u,
            tau=self.tau,
            metric_name=options.train_metric,
            score=options.score,
            eps=options.eps,
            precisions=self._intra_class.precisions if options.train_metric == "mahalanobis" else None,
        )

    def make_head(self) -> Head:
        """Probabilities under the test metric, averaged over the prompts."""
        options = self.options
        u = head_anchors(self.text_features, self.class_features, options.anchors)
        if options.test_metric != "mahalanobis":
            return PromptHead.from_text(u, self.tau, options.test_metric, options.score, options.eps)
        with name_classes_in_error(self.problem.names):
            return MahalanobisHead.from_text(
                u,
                self.class_features,
                self._head_gaussian(),
                tau=self.tau,
                center=self.center,
                texts=self.text_features,
                score=options.score,
                eps=options.eps,
            )

    def copy_for(self, problem: Problem, sources: Sequence[int | None]) -> Self:
        """Keep the centre that was chosen for the classes of the fit."""
        other = super().copy_for(problem, sources)
        other.text_is_center = self.text_is_center
        return other

    def options_without_features(self) -> DCAOptions:
        """Euclidean distances to texts."""
        options: DCAOptions = super().options_without_features()
        return replace_options(options, anchors="text")

    def check_results(self, state: Mapping[str, Tensor]) -> list[str]:
        """Shapes of text features and shots must agree with classes, prompts and joint size."""
        M, C, D = self.options.n_prompts, len(self.problem.names), self.clip.feature_dim
        needed = self.options.test_metric == "mahalanobis" or self.options.anchors != "text"
        problems = check_class_features(state, C, D, needed=needed)
        if state["text_features"].shape != (M, C, D):
            problems.append(f"text_features: shape {tuple(state['text_features'].shape)}, expected {(M, C, D)}")
        if state["text_is_center"].dim():
            problems.append(f"text_is_center: shape {tuple(state['text_is_center'].shape)}, expected ()")
        return problems


@dataclass(frozen=True)
class OpenPoint:
    """A point that the paper leaves open.

    option: the option of `dca` that decides it. paper: what the paper says. own, plots, printed: the value that each
    reading takes. why: the reason.
    """

    option: str
    paper: str
    own: Any
    plots: Any
    printed: Any
    why: str

    def value(self, reading: Reading) -> Any:
        """The value that a reading takes."""
        return getattr(self, reading)

    @property
    def values(self) -> str:
        """The values of all readings as text, one if all agree."""
        texts = [repr(v) if (v := self.value(reading)) == "." else str(v).lower() for reading in READINGS]
        return texts[0] if len(set(texts)) == 1 else " / ".join(texts)


OPEN_POINTS = (
    OpenPoint(
        "center",
        "Σ comes 'from the corresponding visual feature', and the text is 'the average vector' of the images",
        *("chosen", "visual", "visual"),
        "visual is the mean of equation 2, and with it Σ̂ stays near I, so that the accuracy can be as flat in γ "
        "as in the paper's map; text lets the class's image mean into the head, which is worth points where texts are "
        "weak and costs points where they are strong (docs/math.md measures it), so that training images decide",
    ),
    OpenPoint(
        "intra_reduction",
        "equation 11 is a sum over images",
        *("element", "element", "sum"),
        "the plot of α is flat from 0.01 to 100; a sum that is weighed by 100 would outweigh L_cls, "
        "the mean over images and dimensions (as in DAPT) does not",
    ),
    OpenPoint(
        "separation_reduction",
        "equation 12 is a sum over pairs",
        *("mean", "mean", "sum"),
        "the plot of β is flat up to 10; the sum has M·C (M·C - 1) terms, so that it grows with the number of classes",
    ),
    OpenPoint(
        "normalize",
        "'we normalize' Σ_s",
        *(True, True, True),
        "to a correlation, after shrinkage, as in FeCAM",
    ),
    OpenPoint(
        "intra_features",
        "centres before the first batch, the covariance 'only at the first epoch', to keep 'the original CLIP'",
        *("clip", "clip", "clip"),
        "features without tokens are those of the original CLIP; with the initial random tokens they are not",
    ),
    OpenPoint(
        "separation_pairs",
        "pairs are 'randomly selected', and equation 12 sums over all i ≠ j",
        *(0, 0, 0),
        "all pairs cost no more than one (closed form), and nothing is said about how many would be drawn",
    ),
    OpenPoint(
        "contexts",
        "'multiple learnable vectors for each class', initialised 'for each class' in the algorithm",
        *("unified", "unified", "class"),
        "as the text says; shared by the classes, as in CoOp and DAPT, they are few parameters, as the paper claims, "
        "and can be used for classes that were not trained",
    ),
    OpenPoint("suffix", "no text after the name", *(".", ".", "."), "CoOp and DAPT, which it builds on, end with one"),
    OpenPoint(
        "head_views",
        "covariances of 'the final epoch'",
        *(0, 0, 0),
        "evaluation view, after the last step, as in FeCAM; views of the last epoch would depend on random crops",
    ),
    OpenPoint(
        "covariance",
        "with 'too few training samples (e.g. 1-shot)' all categories are 'a single category' with one covariance",
        *("class", "class", "class"),
        "classes with one image share that of all images about their centre, with the γ for one shot; others have "
        "their own, from two images on",
    ),
    OpenPoint(
        "eps",
        "'a small positive number'",
        *(1e-6, 1e-6, 1e-6),
        "no value is printed; distances of unit vectors are far above it, so that it changes no ranking",
    ),
    OpenPoint(
        "score",
        "equation 1 divides by τ, equation 8 multiplies by τ, and k, with |Σ_y| in it, is 'an irrelevant constant'",
        *("inverse", "inverse", "inverse"),
        "equation 8 with τ as CLIP's scale, 100, which is 1 / τ of equation 1; |Σ_y| is dropped as printed, though it "
        "differs between classes",
    ),
)


def reading_options(reading: Reading) -> dict[str, Any]:
    """Values of a reading for the options in which readings differ."""
    return {p.option: p.value(reading) for p in OPEN_POINTS if len({p.value(r) for r in READINGS}) > 1}


def readings_table() -> str:
    """Markdown table of docs/math.md: one row per open point."""
    head = ["| what the paper says | option | own | plots | printed | why |", "|---|---|---|---|---|---|"]
    rows = [
        f"| {p.paper} | `{p.option}` | "
        + " | ".join(f"`{str(p.value(r)).lower()}`" for r in READINGS)
        + f" | {p.why} |"
        for p in OPEN_POINTS
    ]
    return "\n".join([*head, *rows])


def head_anchors(u: Tensor, shots: ClassFeatures, anchors: Anchors) -> Tensor:
    """Unit vectors (M, C, D) that distances are measured to, from unit text features u (M, C, D) and image features.

    Raises:
        UserError: If a class has no images, and the text is not all that is asked for.
    """
    if anchors == "text":
        return u
    if without := int((shots.counts == 0).sum()):
        classes = pluralize(without, "class", "have")
        raise UserError(
            f"anchors={anchors} needs images of every class; {classes} none", hint=set_option("anchors", "text")
        )
    means = F.normalize(shots.means(), dim=-1)
    return F.normalize(u + means, dim=-1) if anchors == "both" else means.expand_as(u)


@dataclass(frozen=True)
class SampledClasses:
    """Classes that compete in one step.

    classes: their indices, ascending. labels: position in `classes` of the class of each image, (B,). total: number of
    all classes.
    """

    classes: list[int]
    labels: Tensor
    total: int

    @classmethod
    def draw(cls, labels: Tensor, total: int, count: int, generator: torch.Generator) -> SampledClasses:
        """Take the classes of a batch, labels (B,), and draw others until there are at least `count`."""
        present = torch.unique(labels).cpu()
        others = torch.ones(total, dtype=torch.bool)
        others[present] = False
        absent = others.nonzero().flatten()
        drawn = absent[torch.randperm(len(absent), generator=generator)[: max(count - len(present), 0)]]
        classes = torch.cat([present, drawn]).sort().values
        return cls(classes.tolist(), torch.searchsorted(classes, labels.cpu()).to(labels.device), total)

    def to_all_classes(self, probabilities: Tensor) -> Tensor:
        """Probabilities (B, n) of the classes that compete -> (B, total), zero for the others."""
        result = probabilities.new_zeros(len(probabilities), self.total)
        result[:, self.classes] = probabilities
        return result


METHOD = DCA
