"""What compare_policies measures agrees with a plain tracker, with gradients computed by hand, and leaves no trace."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from torch import nn

from helpers import MemoryTracker, compare_policies, compress, offload_to_disk
from helpers._tradeoff_picture import Point, tradeoff_svg
from helpers.display import text_width
from helpers.tradeoff import Measured, Tradeoff


@pytest.fixture
def work():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    return model, torch.randn(4096, 16), torch.randn(4096, 16)


def to_disk(model, x):
    with offload_to_disk(model=model):
        return model(x)


def rounded(model, x):
    with compress(torch.bfloat16, model):
        return model(x)


def twice(model, x):
    return 2 * model(x)


def test_peaks_are_the_trackers_and_errors_are_counted_by_hand(work):
    model, x, y = work
    found = compare_policies(model, x, y, {"disk": to_disk, "bfloat16": rounded, "twice": twice}, rounds=1)

    def by_hand(forward):
        model.zero_grad()
        with MemoryTracker(model, x, y) as tracker:
            nn.functional.mse_loss(forward(model, x), y).backward()
        gradient = torch.cat([p.grad.flatten() for p in model.parameters()]).double()
        return tracker.peak_bytes - tracker.start_bytes, gradient

    plain_peak, truth = by_hand(lambda model, x: model(x))
    assert found.plain == Measured("nothing", plain_peak, 1.0, 0.0)
    for forward, name in ((to_disk, "disk"), (rounded, "bfloat16"), (twice, "twice")):
        peak, gradient = by_hand(forward)
        assert found[name].peak_bytes == peak
        assert found[name].gradient_error == pytest.approx(
            ((gradient - truth).norm() / truth.norm()).item(), rel=1e-2, abs=1e-7
        )
    assert found["disk"].gradient_error == 0 < found["bfloat16"].gradient_error < 0.01 < found["twice"].gradient_error
    assert all(row.step_time > 0 for row in found.rows)


def test_nothing_is_left_behind(work):
    model, x, y = work
    grads = [torch.ones_like(p) for p in model.parameters()]
    for p, g in zip(model.parameters(), grads):
        p.grad = g
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    seen = []

    def forward(model, x):
        seen.append(torch.get_num_threads())
        torch.rand(1)
        return model(x)

    compare_policies(model, x, y, {"draws": forward}, rounds=0)
    with pytest.raises(ZeroDivisionError):
        compare_policies(model, x, y, {"fails": lambda model, x: 1 / 0}, rounds=0)
    assert all(p.grad is g for p, g in zip(model.parameters(), grads))
    assert torch.equal(torch.get_rng_state(), state) and torch.get_num_threads() == threads and set(seen) == {1}


def test_each_run_finds_the_models_state_as_it_was():
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)), nn.BatchNorm1d(16))
    x = torch.randn(64, 16, requires_grad=True)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found = compare_policies(model, x, torch.ones(64, 16), {"the same": lambda model, x: model(x)}, rounds=1)
    assert found["the same"].gradient_error == 0.0 and x.grad is None
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model(x)  # the control: a run changes it
    assert not all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


def test_gradients_of_every_kind_are_compared():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(10, 4, sparse=True)
            self.turn = nn.Parameter(torch.ones(4, dtype=torch.complex64))
            self.shift = nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return (self.table(x) * self.turn).abs() + self.shift

    def without_shift(model, x):
        return (model.table(x) * model.turn).abs() + model.shift.detach()

    class Real(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            return g.real.to(g.dtype)

    torch.manual_seed(0)
    model, x = Odd(), torch.arange(10)
    model.turn.data = torch.randn(4, dtype=torch.complex64)
    ways = {
        "the same": lambda model, x: model(x),
        "one is missing": without_shift,
        "the real part": lambda model, x: (model.table(x) * Real.apply(model.turn)).abs() + model.shift,
    }
    found = compare_policies(model, x, torch.ones(10, 4), ways, rounds=0)
    assert found["the same"].gradient_error == 0
    assert found["one is missing"].gradient_error > 0 < found["the real part"].gradient_error


def test_bad_input_is_told_before_anything_runs(work):
    model, x, y = work
    with pytest.raises(TypeError, match=r"budget= is a number of bytes, such as .*; got '1 MB'"):
        compare_policies(model, x, y, {}, budget="1 MB")
    with pytest.raises(ValueError, match="0 or more; got -1"):
        compare_policies(model, x, y, {}, rounds=-1)
    with pytest.raises(ValueError, match="nothing wants a gradient here"):
        compare_policies(model.requires_grad_(False), x, y, {"disk": to_disk})


def test_times_are_taken_in_rounds_there_and_back():
    """So that no policy always comes behind the same other one."""
    ran = []
    model, x = nn.Linear(4, 4), torch.ones(2, 4)
    model.register_forward_pre_hook(lambda *_: ran.append(now))

    def way(name):
        def forward(model, x):
            nonlocal now
            now = name
            out = model(x)
            now = "plain"
            return out

        return forward

    now = "plain"
    compare_policies(model, x, x, {"a": way("a"), "b": way("b")}, rounds=0)
    untimed = len(ran)
    ran.clear()
    compare_policies(model, x, x, {"a": way("a"), "b": way("b")}, rounds=3)
    assert ran[untimed:] == ["plain", "a", "b", "plain", "b", "a", "plain", "a", "b"]


def test_each_run_starts_from_the_same_random_state():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5))
    x = torch.randn(64, 16)

    def drawn_before(model, x):
        torch.rand(1)
        return model(x)

    ways = {"same": lambda model, x: model(x), "another mask": drawn_before}
    found = compare_policies(model, x, x, ways, rounds=0)
    assert found["same"].gradient_error == 0 < found["another mask"].gradient_error


def rows():
    return Tradeoff(
        Measured("nothing", 24 << 20, 1.0, 0.0),
        [
            Measured("slow", 24 << 20, 1.5, 0.0),
            Measured("disk", 5 << 20, 1.4, 0.0),
            Measured("int8", 10 << 20, 1.2, 0.025),
            Measured("tiny error", 10 << 20, 1.3, 3e-6),
        ],
        budget=12 << 20,
    )


def test_frontier_and_budget():
    found = rows()
    assert [r.policy for r in found.frontier] == ["nothing", "int8", "disk"]
    assert [r.policy for r in found.within_budget] == ["int8", "tiny error", "disk"]
    assert [r.policy for r in found.under(6 << 20).within_budget] == ["disk"] and found.budget == 12 << 20
    assert found.under(1).within_budget == [] and len(found.under(None).within_budget) == 5
    assert found.title == "disk lowers the peak from 24.00 MiB to 5.00 MiB"
    assert Tradeoff(found.plain, found.rows[:1], None).title == "Nothing lowers this peak of 24.00 MiB"
    with pytest.raises(KeyError, match="'files' was not measured; there are nothing, slow, disk"):
        found["files"]


def test_the_fastest_is_exact_unless_asked_otherwise_and_noise_decides_nothing():
    found = rows()
    assert found.fastest().policy == "disk", "of those that fit the only exact one"
    assert found.fastest(1e-4).policy == "disk", "1.40 is not told from the 1.30 of the one with an error"
    assert found.fastest(1.0).policy == "tiny error", "int8 at 1.20 is not told from 1.30, which is exacter"
    assert found.under(30 << 20).fastest().policy == "nothing"
    assert found.under(1).fastest(1.0) is None
    near = [Measured("a", 9 << 20, 1.44, 0.0), Measured("b", 5 << 20, 1.5, 0.0), Measured("c", 1 << 20, 1.6, 0.0)]
    assert Tradeoff(found.plain, near, 12 << 20).fastest().policy == "b", "as fast as a, and smaller; c is slower"
    untimed = [row._replace(step_time=float("nan")) for row in near]
    assert Tradeoff(found.plain, untimed, 12 << 20).fastest().policy == "c"


def test_the_title_names_all_that_reach_the_least_and_says_when_nothing_fits():
    found = rows()
    alike = [Measured("CPU", 5 << 20, 1.6, 0.0), *found.rows]
    assert Tradeoff(found.plain, alike, None).title == "CPU and disk lower the peak from 24.00 MiB to 5.00 MiB"
    alike.append(Measured("far", 5 << 20, 1.6, 0.0))
    assert Tradeoff(found.plain, alike, None).title == "CPU, disk and far lower the peak from 24.00 MiB to 5.00 MiB"
    assert found.under(4 << 20).title == "Nothing measured fits into 4.00 MiB; the least is 5.00 MiB"


def test_words_say_what_the_picture_shows():
    found = rows()
    assert repr(found).splitlines() == [
        "disk lowers the peak from 24.00 MiB to 5.00 MiB",
        "policy        peak (B)  step time  gradient error",
        "nothing     25,165,824  1.00       none",
        "slow        25,165,824  1.50       none",
        "disk         5,242,880  1.40       none",
        "int8        10,485,760  1.20       2.50%",
        "tiny error  10,485,760  1.30       3e-06",
    ]
    alt = found.picture.alt
    assert "int8: 10.00 MiB at 1.20 times the plain step, gradient error 2.50%" in alt
    assert "Budget: 12,582,912 B." in alt and found.picture.data is found
    assert "<img" in found._repr_mimebundle_()["text/html"]


def test_the_picture_has_a_point_for_each_policy_a_ring_for_each_error_and_fits_the_budget():
    svg = ET.fromstring(rows().picture.svg)
    circles = [c for c in svg.iter("{http://www.w3.org/2000/svg}circle") if c.get("r") == "6"]
    rings = [c for c in svg.iter("{http://www.w3.org/2000/svg}circle") if c.get("r") == "10"]
    filled = [c for c in circles if c.get("fill") == "#D55E00"]
    assert (len(circles), len(rings), len(filled)) == (5, 2, 3)
    texts = ["".join(t.itertext()) for t in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "budget 12.00 MiB" in texts and "disk 5.00 MiB" in texts and "int8 10.00 MiB, error 2.50%" in texts
    # a point that is lower on the page has fewer bytes, one to the right took longer
    by_name = dict(zip(["nothing", "slow", "disk", "int8", "tiny error"], circles))
    at = {name: (float(c.get("cx")), float(c.get("cy"))) for name, c in by_name.items()}
    assert at["disk"][1] > at["int8"][1] > at["nothing"][1] == at["slow"][1]
    assert at["nothing"][0] < at["int8"][0] < at["tiny error"][0] < at["disk"][0] < at["slow"][0]


def boxes(svg):
    """(left, top, right, bottom) of every label beside a point, by the width that letters have at most."""
    found = []
    for match in re.finditer(
        r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)" stroke="#ffffff"[^>]*>([^<]+)<', svg
    ):
        at, base, words = float(match[1]), float(match[2]), match[4]
        width = text_width(words)
        left = at - {"start": 0, "middle": width / 2, "end": width}[match[3]]
        found.append((left, base - 11, left + width, base + 3))
    return found


@pytest.mark.parametrize("count", [1, 6, 12])
def test_labels_of_points_that_lie_close_do_not_cover_each_other(count):
    points = [Point(f"policy {n}", 1 + n / 500, (20 << 20) + n, "1%", True) for n in range(count)]
    labels = boxes(tradeoff_svg(points, [], title="close"))
    assert len(labels) == count
    for number, a in enumerate(labels):
        assert a[0] >= 0 and a[2] <= 700 and a[1] >= 0 and a[3] <= 420
        for b in labels[number + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_no_label_lies_on_the_frontier_the_budget_or_another_point():
    points = [Point("nothing", 1.0, 24 << 20, "", True), Point("middle", 1.4, 12 << 20, "", True)]
    points += [Point("small", 1.6, 5 << 20, "2%", True), Point("slow", 2.0, 8 << 20, "1%", False)]
    stairs = [(p.time, p.nbytes) for p in points[:3]]
    svg = tradeoff_svg(points, stairs, title="stairs", budget=7 << 20)
    [path] = re.findall(r'<path d="(M[\d.]+ [\d.]+(?:H[\d.]+V[\d.]+)+)" fill="none" stroke="#6b6b6b"', svg)
    start, *steps = re.split("H", path[1:])
    x, y = map(float, start.split())
    lines, circles = [], re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="6"', svg)
    assert (x, y) == tuple(map(float, circles[0])), "it begins at the fastest"
    for step, (cx, cy) in zip(steps, circles[1:3], strict=True):
        right, lower = map(float, step.split("V"))
        assert (right, lower) == (float(cx), float(cy)), "and comes down where the next one is"
        lines += [(x, y, right, y), (right, y, right, lower)]
        x, y = right, lower
    [rule] = map(float, re.findall(r'<path d="M78 ([\d.]+)H680" stroke="#1a1a1a" stroke-dasharray', svg))
    lines += [(78, rule, 680, rule)]
    lines += [(float(cx) - 6, float(cy) - 6, float(cx) + 6, float(cy) + 6) for cx, cy in circles]
    for left, top, right, bottom in boxes(svg):
        for a, b, c, d in lines:
            assert right <= a or c <= left or bottom - 2 <= b or d <= top + 2, (left, top, right, bottom)
    [(at, base)] = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" >budget', svg)
    label = float(at), float(base) - 9, float(at) + text_width("budget 7.00 MiB"), float(base)
    assert not [c for c in lines[-4:] if label[0] < c[2] and c[0] < label[2] and label[1] < c[3] and c[1] < label[3]]
    assert "frontier: for these" in svg and "frontier" not in tradeoff_svg(points, stairs[:1], title="one")


def test_long_names_stay_inside():
    names = ["policy " * n for n in (3, 12, 40)]
    points = [Point(name, 1 + n / 50, (20 << 20) + n, "1%", True) for name in names for n in range(4)]
    for left, top, right, bottom in boxes(tradeoff_svg(points, [], title="long")):
        assert 0 <= left < right <= 700 and 0 <= top < bottom <= 420


def test_odd_numbers_still_give_a_picture():
    for points in ([], [Point("alone", float("nan"), 0, "", True)], [Point("<&>", 1.0, 1 << 40, "", False)]):
        ET.fromstring(tradeoff_svg(points, [], title="odd", budget=0))


def test_what_is_no_mapping_of_functions_is_refused(work):
    model, x, y = work
    for wrong in ([to_disk], {"disk": offload_to_disk()}, {1: to_disk}):
        with pytest.raises(TypeError, match="maps a name to a function of"):
            compare_policies(model, x, y, wrong)
    with pytest.raises(ValueError, match="'nothing' is the plain step"):
        compare_policies(model, x, y, {"nothing": to_disk})


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"model": None}, TypeError, "expected a model, an nn.Module, got NoneType"),
        ({"inputs": (1, 2)}, TypeError, "inputs is one tensor, got tuple"),
        ({"targets": None}, TypeError, "targets is one tensor, got NoneType"),
        ({"rounds": 1.5}, TypeError, "a whole number; got 1.5"),
        ({"rounds": "5"}, TypeError, "a whole number; got '5'"),
        ({"rounds": True}, TypeError, "a whole number; got True"),
        ({"budget": float("inf")}, ValueError, "a finite number of bytes, 0 or more; got inf"),
        ({"budget": float("nan")}, ValueError, "a finite number of bytes, 0 or more; got nan"),
        ({"budget": -1}, ValueError, "a finite number of bytes, 0 or more; got -1"),
        ({"budget": "1"}, TypeError, "a number of bytes"),
    ],
)
def test_wrong_arguments_are_told(work, wrong, error, words):
    model, x, y = work
    arguments = {"model": model, "inputs": x, "targets": y, "policies": {}, "rounds": 0} | wrong
    with pytest.raises(error, match=re.escape(words)):
        compare_policies(**arguments)
    if "budget" in wrong:
        with pytest.raises(error, match=re.escape(words)):
            rows().under(wrong["budget"])


def test_what_is_part_of_a_graph_is_refused_and_no_gradient_stays(work):
    model, x, y = work
    base = torch.ones(4096, 16, requires_grad=True)
    for name, arguments in {"inputs": (base + 0, y), "targets": (x, base + 0)}.items():
        with pytest.raises(ValueError, match=rf"pass {name}.detach\(\)"):
            compare_policies(model, *arguments, {"disk": to_disk}, rounds=0)
    assert base.grad is None

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, out, targets):
            return (self.scale * (out - targets)).square().mean()

    loss, wish = Scaled(), torch.zeros(4096, 16, requires_grad=True)
    loss.scale.grad = held = torch.ones(())
    found = compare_policies(model, base, wish, {"disk": to_disk}, loss=loss, rounds=1)
    assert found["disk"].gradient_error == 0
    assert base.grad is None and wish.grad is None and loss.scale.grad is held
    assert all(p.grad is None for p in model.parameters())
