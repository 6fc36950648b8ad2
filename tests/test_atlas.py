"""The atlas is measured; its second opinions, its proofs and its controls are here."""

from __future__ import annotations

import doctest
import gc
import random
import re
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch

from helpers import _atlas_probe, _atlas_proof, _atlas_run, _atlas_table, operator_atlas
from helpers import atlas as module
from helpers._atlas_extras import INDEX_KINDS
from helpers._atlas_guard import undisturbed
from helpers._atlas_probe import Call
from helpers._atlas_run import Target, measure
from helpers._atlas_values import carries_values
from helpers.atlas import OUTCOMES, Atlas, UnknownOperator, load_catalogue
from helpers.memory import measure_memory


@pytest.fixture(scope="session")
def atlas() -> Atlas:
    return operator_atlas()


class Sample:
    def __init__(self, *args, **kwargs):
        self.input, *self.args = args
        self.kwargs = kwargs


class FakeEntry:
    """An entry of the catalogue, for controls: the operator and the samples are the test's."""

    variant_test_name, inplace_variant, supports_autograd = "", None, True

    def __init__(self, name, op, samples, inplace=None):
        self.name, self.op, self.inplace_variant = name, op, inplace
        self.sample_inputs_func = lambda *_: [Sample(*s) for s in samples]

    def supported_dtypes(self, device):
        return {torch.float32}


def measured(op, *inputs, inplace=None):
    samples = [(i,) for i in inputs] or [(torch.rand(4, 3),), (torch.rand(5, 5),)]
    entry = FakeEntry("fake", op, samples, inplace)
    with undisturbed():
        return measure(Target("fake", "", op, entry=entry))


def words(text):
    return text.split()


def storage(t):
    return t.untyped_storage().data_ptr()


# ------------------------------------------------------------------------------------- the whole catalogue is in it


def test_counts_add_up_to_the_whole_catalogue(atlas):
    catalogue = load_catalogue()
    assert sum(atlas.counts.values()) == len(catalogue)
    assert set(atlas.counts) == {*OUTCOMES, "not run"}
    listed = [v for e in atlas.values() for v in e.variants if e.source == "catalogue"]
    assert sorted((v.name, v.variant) for v in listed) == sorted((o.name, o.variant_test_name) for o in catalogue)
    assert {e.name for e in catalogue} == {n for n, e in atlas.items() if e.source == "catalogue"}
    last = atlas.summary().rows[-1]
    assert last[1:] == [len(catalogue), len({o.name for o in catalogue}), len(atlas.find(source="added"))]
    for kind in OUTCOMES:
        assert set(atlas.find(outputs=kind)) == {n for n, e in atlas.items() if e.outputs == kind}


def test_what_could_not_run_is_listed_with_its_reason(atlas):
    assert len(atlas.failed) == atlas.counts["not run"]
    assert all(reason.strip() for reason in atlas.failed.values())
    assert {name.split("_")[0] for name in atlas.failed if "jiterator" in name} <= {"jiterator"}
    unknown = [n for n, r in atlas.failed.items() if not ("CUDA" in r or "no dtype for it on a CPU" in r)]
    assert not unknown, f"these should run on a CPU: {unknown}"


def test_the_prototype_count_is_a_simpler_rule(atlas):
    """549 copy, 58 view, 10 depend: counted on the catalogue's samples alone, the same object taken for a view."""
    sharing = [
        n for n, e in atlas.items() if e.source == "catalogue" and e.outputs in ("view", "same object", "depends")
    ]
    assert len(sharing) >= 58 + 10  # every maybe that more inputs revealed comes on top
    assert atlas.counts["new memory"] + atlas.counts["depends"] >= 549


@pytest.mark.parametrize(
    ("outputs", "copies", "names"),
    [
        ("new memory", True, "index_select masked_select gather take take_along_dim clone cat stack repeat roll flip"),
        ("new memory", True, "copy.deepcopy tensor to(copy=True) asarray(copy=True) Tensor.new_tensor"),
        (
            "new memory",
            False,
            "add relu_like nn.functional.relu sort unique nan_to_num clamp empty_like zeros_like triu floor",
        ),
        (
            "view",
            False,
            "select narrow chunk split unbind t permute expand diagonal unfold transpose view detach data iter",
        ),
        (
            "view",
            False,
            "numpy from_numpy from_dlpack expand_as unsqueeze squeeze view_as as_strided nn.Parameter copy.copy",
        ),
        ("depends", True, "reshape flatten ravel contiguous to float double type_as type reshape_as as_tensor asarray"),
        ("same object", False, "positive cpu detach_ requires_grad_ zero_ resize_"),
        ("no tensor", False, "item allclose equal tolist"),
    ],
)
def test_known_verdicts(atlas, outputs, copies, names):
    for name in names.split():
        if name in atlas:
            assert (name, atlas[name].outputs, atlas[name].copies) == (name, outputs, copies)
    assert sum(name in atlas for name in names.split()) >= len(names.split()) - 1


def test_a_copy_of_some_calls_only_is_none(atlas):
    assert not atlas["diag"].copies  # of a vector it fills in zeros
    assert not atlas["nn.functional.embedding"].copies  # with max_norm it rescales the weight first
    assert not atlas["nn.functional.unfold"].copies  # with padding it fills in zeros


def test_the_three_outcomes_of_flatten(atlas):
    assert {e.outcome for e in atlas["flatten"].evidence} == {"same object", "view", "new memory"}
    assert "(3,)" in atlas["flatten"].proof or "torch.rand(3)" in atlas["flatten"].proof


def test_every_index_on_either_side(atlas):
    views = {"an int", "two ints", "a slice", "a slice with a step", "a slice and an int", "None", "an Ellipsis"}
    for name, kind in INDEX_KINDS.items():
        entry = atlas[name]
        assert entry.outputs == ("view" if kind in views | {"a 0-dim int tensor"} else "new memory"), name
        assert entry.copies is (entry.outputs == "new memory")
        form = entry.in_place
        assert form.name == f"{name} = 7.0" and form.keeps_storage and form.bumps_version
        x = torch.randn(3, 3)
        at, version = storage(x), x._version
        exec(form.name, {"x": x, "torch": torch})
        assert storage(x) == at and x._version > version and (x == 7).any()


# --------------------------------------------------------------------------------- second opinion: schemas, documents

# What the schemas of the dispatched operators do not let expect, and why it is so all the same.
UNDECLARED = {
    "unsafe_chunk": "declared as copies, so that autograd lets each part be written; they stand on the input's memory",
    "unsafe_split": "as unsafe_chunk",
    "from_dlpack": "goes through a capsule, which no schema sees",
    "nn.Parameter": "made by Tensor._make_subclass, which is no operator of aten",
    "copy.copy": "rebuilt from its storage by pickle's protocol, which is no operator of aten",
}
# Of the same name in aten, without a mark for sharing in any form, and yet sharing.
UNMARKED = {
    **dict.fromkeys(
        ("cauchy", "exponential", "geometric", "log_normal", "normal", "uniform"),
        "the catalogue runs the form with an underscore under this name, and that returns its own object",
    ),
    **dict.fromkeys(
        ("broadcast_tensors", "meshgrid", "atleast_1d", "atleast_2d", "atleast_3d", "einsum", "sum_to_size"),
        "composed of views, whose own schemas are marked; the composition's schema is not",
    ),
    "cartesian_prod": "of a single tensor it returns that tensor",
    "conj_physical": "of a real tensor it returns that tensor",
    "chalf": "of a complex32 tensor it returns that tensor",
    "histogramdd": "hands back the bin edges that were passed in",
    "unsafe_chunk": UNDECLARED["unsafe_chunk"],
    "unsafe_split": UNDECLARED["unsafe_chunk"],
}


def sharing(entry):
    return any(kind in e.outcome for e in entry.evidence for kind in ("view", "same object"))


def test_dispatched_schemas_agree_but_for_the_explained(atlas):
    parted = {v.name: v.declared for e in atlas.values() for v in e.variants if v.declared}
    assert parted == dict.fromkeys(UNDECLARED, frozenset({"undeclared sharing"}))


def test_schemas_of_the_same_name_agree_but_for_the_explained(atlas):
    unmarked, needlessly = set(), set()
    for name, entry in atlas.items():
        packet = getattr(torch.ops.aten, name, None) if entry.source == "catalogue" and "." not in name else None
        if packet is None or not hasattr(packet, "overloads"):
            continue
        schemas = [getattr(packet, o)._schema for o in packet.overloads()]
        pure = [
            s
            for s in schemas
            if not any(a.alias_info and a.alias_info.is_write for a in s.arguments)
            and any("Tensor" in str(a.type) for a in s.arguments)
        ]
        marked = any(r.alias_info for s in pure for r in s.returns)
        if pure and marked != sharing(entry):
            (needlessly if marked else unmarked).add(name)
    assert unmarked == set(UNMARKED)
    assert needlessly == set()


# The operators that PyTorch's page "Tensor views" lists; `swapaxes`, `swapdims` are other names of `transpose`.
DOCUMENTED = set(
    words(
        "adjoint as_strided detach diagonal expand expand_as movedim narrow permute select squeeze transpose t "
        "T H mT mH real imag view_as_real unflatten unfold unsqueeze view view_as unbind split hsplit vsplit "
        "tensor_split split_with_sizes swapaxes swapdims chunk Tensor.indices Tensor.values"
    )
)
NOT_ALWAYS_VIEWS = {"real": "of a real tensor it returns that tensor itself; a view of a complex one"}
_MAYBE = "the page names it beside the list: a view where strides allow it, else a copy"
_NOTHING_TO_DO = "returns its argument where nothing has to change"
_OFF = "switched off (training=False or p=0) it returns its argument"
_WRITES = "writes into its argument and returns it"
UNLISTED = {
    **dict.fromkeys(("reshape", "reshape_as", "flatten", "ravel", "contiguous"), _MAYBE),
    "__getitem__": "the page says it of basic indexing; its samples index in advanced ways too",
    **dict.fromkeys(("broadcast_to", "broadcast_tensors", "meshgrid"), "expand by another name"),
    **dict.fromkeys(("dsplit", "unsafe_chunk", "unsafe_split", "slice"), "a sibling of one that is listed"),
    "linalg.diagonal": "diagonal by another name",
    **dict.fromkeys(("view_as_complex", "conj"), "a view, and not on the list"),
    "einsum": "a mere permutation or diagonal is left as the view it is",
    "cartesian_prod": UNMARKED["cartesian_prod"],
    "conj_physical": UNMARKED["conj_physical"],
    "histogramdd": UNMARKED["histogramdd"],
    "masked.prod": "over no dimension at all it returns its argument",
    "sum_to_size": "of the size that it already has: returns its argument",
    **dict.fromkeys(("atleast_1d", "atleast_2d", "atleast_3d"), "enough dimensions: its argument; else a view"),
    **dict.fromkeys(("positive", "resolve_conj", "resolve_neg"), _NOTHING_TO_DO),
    **dict.fromkeys(
        words("to bfloat16 bool byte char double float half int long short cdouble cfloat chalf"), _NOTHING_TO_DO
    ),
    **dict.fromkeys(
        [f"nn.functional.{n}" for n in words("dropout dropout2d dropout3d alpha_dropout feature_alpha_dropout")], _OFF
    ),
    **dict.fromkeys(words("cauchy exponential geometric log_normal normal uniform resize_ resize_as_ zero_"), _WRITES),
}


def test_documented_views_agree_but_for_the_explained(atlas):
    found = {d: atlas[atlas.aliases.get(d, d)].outputs for d in DOCUMENTED}
    assert {d for d, outputs in found.items() if outputs != "view"} == set(NOT_ALWAYS_VIEWS)
    unlisted = {n for n, e in atlas.items() if e.source == "catalogue" and sharing(e) and n not in DOCUMENTED}
    assert unlisted == set(UNLISTED)


# ------------------------------------------------------------------------------------------------------------ proofs

# What three lines cannot say: arguments that must fit one another, callables, sparse results, and sets of variants.
UNPROVEN = set(
    words(
        "cholesky linalg.cholesky sparse.sampled_addmm sparse.mm lu_unpack lu_solve linalg.lu_solve "
        "linalg.ldl_solve to_sparse max_pool2d_with_indices_backward torch._scaled_mm_v2 "
        "nn.functional.triplet_margin_with_distance_loss svd_lowrank pca_lowrank normal Tensor.values "
        "Tensor.indices"
    )
)


def test_every_proof_runs(atlas):
    proofs = {n: e.proof for n, e in atlas.items() if e.outputs is not None}
    assert {n for n, p in proofs.items() if not p} <= UNPROVEN
    with undisturbed():
        for name, proof in proofs.items():
            if proof:
                assert len(re.sub(r"^import .*\n", "", proof).split("\n")) <= 3, name
                assert "assert " in proof
                exec(proof, {"torch": torch})


def test_a_proof_of_something_else_fails(atlas):
    assert _atlas_proof.holds(atlas["narrow"].proof)
    assert not _atlas_proof.holds(atlas["narrow"].proof.replace(" == ", " != "))
    assert not _atlas_proof.holds(atlas["clone"].proof.replace("torch.clone(x)", "x.view(x.shape)"))


# ---------------------------------------------------------------------------------------------------------- in place


@pytest.mark.parametrize(
    ("name", "recording"),
    [("exp", 0), ("sigmoid", 0), ("tanh", 0), ("sqrt", 0), ("sin", 1), ("cos", 1), ("abs", 1), ("mul", 1), ("add", 0)],
)
def test_in_place_facts_by_hand(atlas, name, recording):
    form = atlas[name].in_place
    other = (0.5,) if name == "add" else (torch.rand(1000),) if name == "mul" else ()
    x = torch.rand(1000)
    at, version = x.data_ptr(), x._version
    assert (getattr(x, f"{name}_")(*other) is x) is form.returns_self is True
    assert (x.data_ptr() == at) is form.keeps_storage is True
    assert (x._version > version) is form.bumps_version is True
    assert measure_memory(lambda: getattr(x, f"{name}_")(*other)).peak_bytes == form.bytes == 0
    h = torch.rand(1000, requires_grad=True) * 1
    if name == "mul":  # with a factor that needs no gradient only the factor is kept
        other = (torch.rand(1000, requires_grad=True),)
    took = measure_memory(lambda: getattr(h, f"{name}_")(*other))
    assert took.retained_bytes == 4000 * recording
    assert form.recording_keeps == form.input_bytes * recording


def test_in_place_exceptions(atlas):
    forms = {n: e.in_place for n, e in atlas.items() if e.in_place is not None}
    assert len(forms) > 150
    assert not forms["resize_"].keeps_storage  # the sample grows
    assert forms["resize_"].recording_bytes is None  # and is refused under autograd
    assert {n for n, f in forms.items() if not f.keeps_storage} == {"resize_"}
    assert {n for n, f in forms.items() if not f.returns_self} == set()
    assert {n for n, f in forms.items() if not f.bumps_version} <= {"resize_", "resize_as_"}
    assert "nn.functional.dropout(inplace=True)" in str(forms["nn.functional.dropout"])


# ------------------------------------------------------------------------------------- questions that readers ask


def test_strides_decide_and_not_contiguity():
    sliced = torch.rand(2, 3, 4)[:, :, :1]
    assert not sliced.is_contiguous()
    with undisturbed():
        assert _atlas_run._kind(Call((sliced,), {}), sliced.reshape(-1)) == "view"
        assert _atlas_run._kind(Call((sliced.transpose(0, 1),), {}), sliced.transpose(0, 1).reshape(-1)) == "new memory"


def test_to_with_a_memory_format_changes_nothing():
    transposed = torch.rand(3, 2).t()
    assert measured(lambda x: x.to(memory_format=torch.contiguous_format), transposed).outputs == "same object"
    assert measured(lambda x: x.contiguous(), transposed).outputs == "depends"


def test_writes_through_an_index_copy_are_lost_and_through_an_assignment_are_not(atlas):
    for name in ("x[[0, 2]]", "x[torch.tensor([1])]", "x[True]"):
        assert atlas[name].outputs == "new memory" and atlas[name].in_place.keeps_storage


def test_in_place_is_no_cheaper_where_autograd_needs_the_old_value(atlas):
    for name in words("sin cos abs clamp pow nn.functional.silu nn.functional.hardtanh"):
        form = atlas[name].in_place
        assert (name, form.bytes, form.recording_keeps) == (name, 0, form.input_bytes)
    for name in words("nn.functional.relu sigmoid tanh exp sqrt"):
        assert (name, atlas[name].in_place.recording_keeps) == (name, 0)


# ------------------------------------------------------------------------------------------------- saved for backward


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("exp", {"output"}), ("sigmoid", {"output"}), ("sin", {"input"}), ("mul", {"input"}), ("add", set()),
        ("sum", set()), ("view", set()), ("cat", set()), ("gather", {"input"}),
        ("nn.functional.layer_norm", {"input", "other"}), ("nn.functional.dropout", {"other"}),
        ("softmax", {"output"}), ("mm", {"input"}),
    ],
)  # fmt: skip
def test_what_backward_keeps(atlas, name, kept):
    assert atlas[name].saves == kept and atlas[name].differentiable
    assert not atlas["argmax"].differentiable and atlas["argmax"].saves == set()


# ---------------------------------------------------------------------------------------------------------- controls


@pytest.mark.parametrize(
    ("op", "outputs", "copies"),
    [
        (lambda x: x.clone(), "new memory", True),
        (lambda x: x.t().contiguous().t(), "depends", True),
        (lambda x: x.relu(), "new memory", False),
        (lambda x: x.sort().values, "new memory", False),
        (lambda x: x.double(), "new memory", True),
        (lambda x: x.floor(), "new memory", False),
        (lambda x: x.clamp(-20000, 20000), "new memory", False),
        (lambda x: x.nan_to_num(), "new memory", False),
        (lambda x: torch.unique_consecutive(x), "new memory", False),
        (lambda x: torch.empty_like(x), "new memory", False),
        (lambda x: x[:1].clone(), "new memory", True),
        (lambda x: x.view(x.shape), "view", False),
        (lambda x: x, "same object", False),
        (lambda x: x.tolist(), "no tensor", False),
        (lambda x: x if x.is_contiguous() else x.clone(), "depends", True),
        (lambda x: (x, x.clone()), "depends", True),
    ],
)
def test_fake_operators_are_seen_through(op, outputs, copies):
    found = measured(op)
    assert (found.outputs, found.copies) == (outputs, copies)


def test_a_copy_that_changes_one_number_is_none():
    def lies(x):
        out = x.clone()
        out.view(-1)[-1] += 1
        return out

    assert measured(lies).copies is False


def test_sharing_that_a_schema_hides_is_reported():
    hidden = measured(lambda x: torch.from_numpy(x.numpy()))
    assert hidden.outputs == "view" and hidden.declared == {"undeclared sharing"}
    assert measured(lambda x: x.view(-1)).declared == set()


def test_an_in_place_form_that_lies_is_caught():
    def moves(x):
        x.data = x.clone()
        return x.clone()

    form = measured(torch.exp, inplace=moves).in_place
    assert not form.keeps_storage and not form.returns_self and not form.bumps_version


def test_an_operator_that_never_runs_has_a_reason():
    def broken(x):
        raise RuntimeError("object at 0x7f00 is broken\nand more")

    found = measured(broken)
    assert found.outputs is None and found.reason == "object at 0x… is broken"


def test_values_are_traced_not_compared():
    assert carries_values(torch.flip, Call((torch.rand(3, 4), (0,)), {})) == 12
    assert carries_values(torch.maximum, Call((torch.rand(3), torch.rand(3)), {})) == 0
    assert carries_values(torch.clone, Call((torch.rand(100, 100),), {})) is None  # more places than distinct values


# -------------------------------------------------------------------------------------------------- leaves no trace


def test_everything_global_is_as_before():
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    expected = torch.rand(3), np.random.rand(3), random.random()
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    hooks = []
    previous = torch.get_default_dtype(), torch.get_num_threads(), list(warnings.filters)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(hooks.append, lambda t: t):
            targets = [
                t for t in _atlas_run.targets_of(load_catalogue()) if t.name in ("mul", "bernoulli", "normal", "exp")
            ]
            found = module.measure_targets(targets)
            assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            assert torch.get_default_dtype() is torch.float64
        assert {v.dtype for v in found} == {"float32"} and not hooks
    finally:
        torch.set_default_dtype(previous[0])
    assert torch.get_num_threads() == previous[1] and warnings.filters == previous[2]
    assert not torch.are_deterministic_algorithms_enabled()
    got = torch.rand(3, dtype=torch.float32), np.random.rand(3), random.random()
    assert torch.equal(got[0], expected[0]) and (got[1] == expected[1]).all() and got[2] == expected[2]


def test_state_comes_back_after_an_error(monkeypatch):
    before = torch.random.get_rng_state()
    monkeypatch.setattr(module, "measure", lambda target: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module.measure_targets(_atlas_run.targets_of(load_catalogue())[:1])
    assert torch.equal(before, torch.random.get_rng_state()) and torch.is_grad_enabled()


def test_the_catalogue_does_not_freeze_the_backends():
    # PyTorch's test tools forbid to set a flag once they are imported, for good; so each in a process of its own.
    setting = "import torch; torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark"
    for loading, frozen in (
        ("from helpers.atlas import load_catalogue; load_catalogue()", False),
        ("import torch.testing._internal.common_methods_invocations", True),  # the control
    ):
        done = subprocess.run([sys.executable, "-c", f"{loading}; {setting}"], capture_output=True, text=True)
        assert (done.returncode != 0) == frozen, done.stderr


def test_two_runs_say_the_same():
    targets = _atlas_run.targets_of(load_catalogue())[::40]
    assert module.measure_targets(targets) == module.measure_targets(targets)


def test_no_tensor_is_kept_alive(atlas):
    gc.collect()
    seen, todo = set(), [atlas._entries]
    while todo:
        thing = todo.pop()
        if id(thing) in seen or isinstance(thing, (str, int, float, type)):
            continue
        seen.add(id(thing))
        assert not isinstance(thing, torch.Tensor)
        todo += [r for r in gc.get_referents(thing) if not isinstance(r, type)]


def test_cached_within_a_kernel(atlas):
    assert operator_atlas() is atlas


def test_no_address_anywhere(atlas):
    everything = atlas.html + repr(atlas) + "".join(map(repr, atlas.values()))
    assert not re.search(r"0x[0-9a-f]{4}|(?<![.\d])\d{12,}\b", everything)


# ----------------------------------------------------------------------------------------------------- names, display


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("relu", "'nn.functional.relu'"),
        ("relu_", "'nn.functional.relu'"),
        ("torch.flaten", "'flatten'"),
        ("swapaxes", "'swapaxes' is another name of 'transpose'"),
        ("zzzzqq", "nothing is called nearly so"),
    ],
)
def test_an_unknown_name_gets_the_nearest(atlas, name, part):
    with pytest.raises(KeyError) as caught:
        atlas[name]
    assert isinstance(caught.value, UnknownOperator) and part in str(caught.value)
    assert name not in atlas and atlas.get(name) is None


def test_find(atlas):
    assert atlas.find("reshape", outputs="depends") == ["reshape", "reshape_as"]
    assert atlas.find("swapaxes") == ["transpose"]
    assert atlas.find("torch.flatten")[0] == "flatten"
    assert "exp" in atlas.find(saves={"output"}) and "sin" not in atlas.find(saves={"output"})
    assert len(atlas.find()) == len(atlas)
    with pytest.raises(ValueError, match="there is new memory, view"):
        atlas.find(outputs="copy")


def test_html_and_text_stand_alone(atlas):
    bundle = atlas._repr_mimebundle_()
    assert len(bundle["text/html"]) < 150_000 and bundle["text/plain"] == repr(atlas)
    assert "<script" not in bundle["text/html"]
    for name in atlas:
        assert name in bundle["text/html"] or name.replace(">", "&gt;") in bundle["text/html"]
    assert bundle["application/vnd.jupyter.widget-view+json"]["model_id"] == atlas.card.box.model_id


def test_an_entry_shows_itself(atlas):
    bundle = atlas["mul"]._repr_mimebundle_()
    assert bundle["text/plain"] == repr(atlas["mul"]) and "mul_: returns its own object" in bundle["text/plain"]
    assert "keeps its input" in bundle["text/html"] and "torch.mul(x, y)" in bundle["text/html"]
    assert "keeps its input and something new" in atlas["nn.functional.layer_norm"].keeps


def test_widget_search_filter_and_choice(atlas):
    card = _atlas_table.Card(atlas)
    assert len(card.names.options) == len(atlas)
    for value in (card.names.options[0][1], card.names.options[-1][1]):  # the least and the greatest
        card.names.value = value
        assert f"<code>{value}</code>" in card.detail.value or "x[" in value
    card.search.value = "flatten"
    assert [n for _, n in card.names.options] == ["flatten", "unflatten"] and card.names.value == "flatten"
    assert "torch.flatten(x)" in card.detail.value and "2 of " in card.count.value
    card.search.value = "no such operator"
    assert card.names.options == () and "No name fits" in card.detail.value
    card.search.value = ""
    for label, asked in _atlas_table.FILTERS.items():
        card.outcome.value = label
        assert [n for _, n in card.names.options] == atlas.find(**asked)
    card.outcome.value = next(iter(_atlas_table.FILTERS))
    for label, asked in _atlas_table.KEPT.items():
        card.kept.value = label
        assert [n for _, n in card.names.options] == atlas.find(**asked) and card.names.options
    card.kept.value = next(iter(_atlas_table.KEPT))
    assert len(card.names.options) == len(atlas)


def test_without_widgets_the_names_are_there(atlas, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ipywidgets", None)
    fresh = Atlas([v for e in atlas.values() for v in e.variants])
    assert set(fresh._repr_mimebundle_()) == {"text/html", "text/plain"}
    with pytest.raises(ImportError, match="pip install 'ipywidgets"):
        _ = fresh.card


def test_without_expecttest_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch.testing._internal.common_methods_invocations", None)
    with pytest.raises(ImportError, match="pip install expecttest"):
        load_catalogue()


def test_docstring_examples(atlas):
    parser = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    for test in doctest.DocTestFinder().find(module, "helpers.atlas"):
        parser.run(test)
    assert parser.summarize().failed == 0


def test_layouts_keep_shapes_and_part_strides():
    call = Call((torch.rand(2, 3),), {})
    made = [c.args[0] for c in _atlas_probe.layouts(call, torch.float32)]
    assert {t.shape for t in made} == {(2, 3)} and {t.stride() for t in made} == {(3, 1), (1, 2), (6, 2), (0, 1)}
