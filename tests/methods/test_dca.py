from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from conftest import make_clip
from dca.backbones.clip import CLIP
from dca.backbones.dual_encoder import ExtraTokens
from dca.core import seeds
from dca.core.errors import UserError
from dca.methods.base import Batch, Problem
from dca.methods.dca import DCA, PAPER_TABLE, DCAOptions, paper_epochs
from dca.methods.shared.gaussian import GAMMAS, paper_gammas
from dca.methods.summary import parameter_count
from oracles import dca as oracle
from oracles.images import Images

CLASSES = ("cat", "dog", "a photo", "x")


def build(clip: CLIP, shots: int = 3, classes: tuple[str, ...] = CLASSES, **options: object) -> DCA:
    problem = Problem(names=classes, shots=shots, seed=1)
    return DCA.build(clip, problem, DCAOptions(**options))  # type: ignore[arg-type]


def batch_of(images: Images) -> Batch:
    return Batch(images.pixels, images.labels, seeds.generator(0, "test"))


def test_defaults_train_21504_parameters_on_vit_b_16() -> None:
    assert parameter_count(DCA) == 21504
    assert parameter_count(DCA, classes=1000) == 21504


def test_class_specific_contexts_train_c_times_9216_and_the_visual_tokens() -> None:
    from dca.backbones.clip import VIT_B_16
    from dca.backbones.clip.weights import build_without_weights

    problem = Problem(names=tuple(f"class {c}" for c in range(7)), shots=4)
    method = DCA.build(build_without_weights(VIT_B_16), problem, DCAOptions(contexts="class"))
    assert method.count_parameters() == 7 * 9216 + 12288


@pytest.mark.parametrize("counts", [(3, 3, 3, 3), (1, 1, 1, 1), (4, 1, 2, 3)])
@pytest.mark.parametrize("contexts", ["unified", "class"])
@pytest.mark.parametrize("intra", ["mahalanobis", "l2", "l1"])
def test_step_equals_the_equations(clip: CLIP, counts: tuple[int, ...], contexts: str, intra: str) -> None:
    """Each loss term from features written out by hand: no head, no structured form."""
    images = Images(counts)
    shots = sum(counts) // len(counts)
    method = build(clip, shots, contexts=contexts, intra=intra, alpha=3.0, beta=0.7)
    method.prepare(images)
    step = method.step(batch_of(images))

    f = (
        F.normalize(clip.encode_image(images.pixels, tokens=ExtraTokens({0: method.visual.tokens})), dim=-1)
        .detach()
        .double()
    )
    u = F.normalize(method.text.encode(clip), dim=-1).detach().double()
    frozen = F.normalize(clip.encode_image(images.pixels), dim=-1).detach().double()
    own = [frozen[images.labels == c] for c in range(4)]
    centers = torch.stack([x.mean(0) for x in own])
    sigmas = [
        oracle.dense_covariance(x, x.mean(0), *paper_gammas(shots), True)
        if len(x) > 1
        else oracle.dense_covariance(frozen, frozen.mean(0), *paper_gammas(1), True)
        for x in own
    ]
    expected = {
        "cls": oracle.loss_cls(f, u, images.labels, clip.tau, 1e-6),
        "in": 3.0 * oracle.loss_in(f, centers, sigmas, images.labels, intra, "element"),
        "ts": 0.7 * oracle.loss_ts(u.flatten(0, 1), "mean"),
    }
    assert {k: float(v.detach()) for k, v in step.terms.items()} == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(("given", "expected"), [({}, GAMMAS[2]), ({"gamma1": 100.0, "gamma2": 50.0}, (100.0, 50.0))])
def test_probabilities_equal_the_equations(clip: CLIP, given: dict[str, float], expected: tuple[float, float]) -> None:
    """The finished model: text centre, the paper's γ or others, inverse score, mean over prompts."""
    images = Images((3, 3, 3, 3))
    method = build(clip, center="text", **given)
    method.finish(images)
    method.build_head()
    new = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(9))
    got = method.classify(method.encode(new))
    f = method.encode(new).detach().double()
    u = method.encode_text().detach().double()
    x = method.encode(images.pixels).detach().double()
    for n in range(5):
        mean = torch.zeros(4, dtype=torch.float64)
        for m in range(4):
            distances = []
            for c in range(4):
                sigma = oracle.dense_covariance(x[images.labels == c], u[m, c], *expected, True)
                distances.append(float(oracle.dense_distance(sigma, f[n], u[m, c])))
            mean += torch.tensor(oracle.probability(distances, clip.tau, 1e-6, "inverse")) / 4
        torch.testing.assert_close(got[n].double(), mean, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("contexts", ["unified", "class"])
def test_gradients_reach_every_own_parameter_and_nothing_else(contexts: str) -> None:
    clip = make_clip()
    images = Images((2, 2, 2, 2))
    method = build(clip, contexts=contexts)
    method.prepare(images)
    torch.stack(list(method.step(batch_of(images)).terms.values())).sum().backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum(-1).min() > 0, name
    assert all(p.grad is None for p in clip.parameters())


def test_the_backbone_is_neither_among_the_parameters_nor_in_the_state(clip: CLIP) -> None:
    method = build(clip)
    method.finish(Images((2, 2, 2, 2)))
    method.build_head()
    names = {"text_features", "train_features", "train_counts", "visual.tokens"}
    names |= {"other_features", "other_counts", "other_text", "text_is_center"}
    assert set(method.state_dict()) == names | {f"text.contexts.{m}" for m in range(4)}


def test_contexts_start_from_the_phrases(clip: CLIP) -> None:
    method = build(clip)
    for context, phrase in zip(method.text.contexts, method.options.phrases, strict=False):
        ids = clip.tokenizer.encode(phrase)
        torch.testing.assert_close(context.detach(), clip.text.embedding.weight[ids])


def test_at_the_start_prompts_equal_the_written_sentences(clip: CLIP) -> None:
    """Without a step, prompt m of class y is the sentence "phrase name." itself."""
    method = build(clip)
    u = method.text.encode(clip)
    for m, phrase in enumerate(method.options.phrases):
        expected = clip.encode_text([f"{phrase} {name}." for name in CLASSES])
        torch.testing.assert_close(u[m], expected, atol=1e-5, rtol=0)


def test_more_prompts_than_phrases_are_random_and_fewer_take_the_first(clip: CLIP) -> None:
    more = build(clip, n_prompts=6, random_length=3)
    assert [len(c) for c in more.text.contexts][4:] == [3, 3]
    assert 0.01 < float(more.text.contexts[5].detach().std()) < 0.03
    again = build(clip, n_prompts=6, random_length=3)
    assert torch.equal(more.text.contexts[5], again.text.contexts[5])
    assert len(build(clip, n_prompts=2).text.contexts) == 2


def test_visual_tokens_start_intra_class_the_vpt_range(clip: CLIP) -> None:
    tokens = build(clip).visual.tokens
    reach = (6 / (3 * 8**2 + 32)) ** 0.5
    assert tokens.shape == (16, 32)
    assert float(tokens.detach().abs().max()) <= reach
    assert float(tokens.detach().abs().max()) > 0.9 * reach


def test_the_ablation_baseline_is_one_context_with_cosine(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    method = build(
        clip, n_prompts=1, phrases=("a photo of a",), alpha=0.0, beta=0.0, train_metric="cosine", test_metric="cosine"
    )
    method.prepare(images)
    step = method.step(batch_of(images))
    f, u = method.encode(images.pixels), method.encode_text()[0]
    expected = F.cross_entropy(clip.tau * f @ u.T, images.labels)
    assert list(step.terms) == ["cls"]
    torch.testing.assert_close(step.terms["cls"], expected)
    method.finish(images)
    method.build_head()
    torch.testing.assert_close(method.classify(f), (clip.tau * f @ u.T).softmax(-1))


def test_training_can_use_the_mahalanobis_distance(clip: CLIP) -> None:
    images = Images((3, 3, 3, 3))
    method = build(clip, train_metric="mahalanobis", alpha=0.0, beta=0.0)
    method.prepare(images)
    got = float(method.step(batch_of(images)).terms["cls"].detach())
    f, u = method.encode(images.pixels).detach().double(), method.encode_text().detach().double()
    frozen = F.normalize(clip.encode_image(images.pixels), dim=-1).detach().double()
    sigmas = [frozen[images.labels == c] for c in range(4)]
    sigmas = [oracle.dense_covariance(x, x.mean(0), *paper_gammas(3), True) for x in sigmas]
    expected = 0.0
    for m in range(4):
        for i, y in enumerate(images.labels.tolist()):
            d = [float(oracle.dense_distance(sigmas[c], f[i], u[m, c])) for c in range(4)]
            expected -= float(torch.tensor(oracle.probability(d, clip.tau, 1e-6, "inverse")[y]).log()) / 12
    assert got == pytest.approx(expected, rel=1e-4)


def test_centres_of_l_in_can_include_the_first_visual_tokens(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    plain, prompted = build(clip), build(clip, intra_features="prompted")
    plain.prepare(images)
    prompted.prepare(images)
    assert not torch.allclose(plain._intra_class.centers, prompted._intra_class.centers, atol=1e-4)


def test_head_views_multiply_the_shots(clip: CLIP) -> None:
    method = build(clip, head_views=3)
    method.finish(Images((2, 2, 2, 2)))
    method.build_head()
    assert len(method.train_features) == 24
    assert method.train_counts.tolist() == [6] * 4


def test_random_pairs_of_l_ts_use_the_batch_generator(clip: CLIP) -> None:
    images = Images((2, 2, 2, 2))
    method = build(clip, separation_pairs=5, beta=1.0)
    method.prepare(images)
    one, other = (float(method.step(batch_of(images)).terms["ts"].detach()) for _ in range(2))
    assert one == other
    assert one != pytest.approx(float(build_ts(clip, images).detach()))


def build_ts(clip: CLIP, images: Images) -> Tensor:
    method = build(clip, beta=1.0)
    method.prepare(images)
    return method.step(batch_of(images)).terms["ts"]


@pytest.mark.parametrize(("shots", "expected"), [(1, 1), (2, 2), (3, 2), (4, 4), (7, 4), (8, 8), (15, 8), (64, 16)])
def test_gammas_take_the_largest_listed_shot_not_above(shots: int, expected: int) -> None:
    assert paper_gammas(shots) == GAMMAS[expected]


def test_the_recipe_follows_shots_and_dataset() -> None:
    assert [paper_epochs(k) for k in (1, 2, 4, 5, 8, 16, 99)] == [80, 100, 100, 200, 200, 200, 200]
    for name, (alpha, beta, rate) in PAPER_TABLE.items():
        chosen = DCA.resolve(DCAOptions(recipe="paper"), Problem(names=CLASSES, shots=16, dataset=name))
        assert (chosen.alpha, chosen.beta, chosen.learning_rate) == (alpha, beta, rate)
        assert chosen.batch_size == (64 if name in ("imagenet", "sun397") else 32)
    own = DCA.resolve(DCAOptions(epochs=7, gamma1=9.0), Problem(names=CLASSES, shots=16, dataset="photos"))
    assert (own.epochs, own.gamma1, own.learning_rate) == (7, 9.0, None)
    with pytest.raises(UserError, match="no values for photos"):
        DCA.resolve(DCAOptions(recipe="paper"), Problem(names=CLASSES, shots=16, dataset="photos"))


def test_names_that_do_not_fit_are_listed(clip: CLIP) -> None:
    with pytest.raises(UserError, match="longer than") as caught:
        build(clip, classes=("cat", "z" * 80, "y" * 90))
    assert len(caught.value.details) == 2


def test_an_indefinite_covariance_is_named_by_class_while_fitting(clip: CLIP) -> None:
    method = build(clip, gamma1=0.0, gamma2=500.0)
    with pytest.raises(UserError, match="gamma1=0, gamma2=500") as caught:
        method.prepare(Images((3, 3, 3, 3)))
    assert any(line.removeprefix("class ") in CLASSES for line in caught.value.details)


def test_unusable_options_are_refused() -> None:
    with pytest.raises(UserError, match="out of range") as caught:
        DCAOptions(n_prompts=0, center="nowhere", alpha=-1.0)
    assert len(caught.value.details) == 3
    with pytest.raises(UserError, match="has no token"):
        build(make_clip(), phrases=("", "x"))


def test_every_option_has_help_and_an_origin() -> None:
    for field in dataclasses.fields(DCAOptions):
        assert field.metadata["help"], field.name
        assert field.metadata["source"], field.name


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("paper", "n_prompts phrases visual_tokens score train_metric test_metric intra covariance normalize epochs"),
        ("paper", "batch_size optimizer warmup_epochs warmup_rate gamma1 gamma2"),
        ("our reading", "contexts intra_features intra_reduction separation_reduction separation_pairs"),
        ("our reading", "center head_views"),
        ("ours", "recipe alpha beta learning_rate random_length eps"),
        ("CoOp", "suffix momentum weight_decay schedule final_rate augment"),
        ("CLIP", "tau"),
        ("torch", "adam_eps"),
    ],
)
def test_the_origin_of_an_option_says_what_the_paper_states_and_what_we_read_into_it(source: str, names: str) -> None:
    found = {field.name: field.metadata["source"] for field in dataclasses.fields(DCAOptions)}
    for name in names.split():
        assert found[name].startswith(source), (name, found[name])
        assert (found[name] == "our reading") == (source == "our reading")


@pytest.mark.parametrize(
    ("dataset", "shots", "expected"), [("eurosat", 16, 200), ("photos", 16, 100), ("photos", 4, 100), ("photos", 1, 80)]
)
def test_own_images_are_not_learned_for_longer_than_it_pays(dataset: str, shots: int, expected: int) -> None:
    problem = Problem(names=("a", "b"), shots=shots, dataset=dataset)
    assert DCA.resolve(DCAOptions(), problem).epochs == expected
    assert DCA.resolve(DCAOptions(epochs=7), problem).epochs == 7


def test_without_alpha_no_covariance_of_l_in_is_made(clip: CLIP, monkeypatch: pytest.MonkeyPatch) -> None:
    images = Images((3, 3, 3, 3))
    expected = build(clip, alpha=1e-9, beta=0.7)
    expected.prepare(images)
    loss = expected.step(batch_of(images)).terms

    def never(*_: object, **__: object) -> None:
        raise AssertionError("made")

    monkeypatch.setattr("dca.methods.dca.IntraClass.from_features", never)
    monkeypatch.setattr("dca.methods.dca.IntraClass.from_support", never)
    method = build(clip, alpha=0.0, beta=0.7)
    method.prepare(images)
    terms = method.step(batch_of(images)).terms
    assert set(terms) == {"cls", "ts"}
    assert all(torch.equal(terms[name], loss[name]) for name in terms)
    with pytest.raises(AssertionError, match="made"):
        build(clip, alpha=0.0, train_metric="mahalanobis").prepare(images)
