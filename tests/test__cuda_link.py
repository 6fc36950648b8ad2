"""The pool of pinned buffers, with plain ones on any machine; the way to a CUDA device and back where there is one."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from helpers import offload_to_cpu, offload_to_disk
from helpers._cuda_link import _SMALLEST, CudaLink, PinnedPool
from helpers._pieces import bytes_of, piece_of
from helpers._tally import Tally
from helpers.models import mlp, transformer

KIB64 = 1 << 16


def pool_of(limit=16 * KIB64):
    made = []

    def make(nbytes):
        made.append(nbytes)
        return torch.empty(nbytes, dtype=torch.uint8)

    return PinnedPool(limit, make), made


def test_sizes_are_powers_of_two_and_not_small():
    pool, made = pool_of()
    for nbytes in (1, KIB64 - 1, KIB64, KIB64 + 1, 3 * KIB64, 4 * KIB64):
        buffer = pool.take(nbytes)
        assert buffer.numel() >= nbytes
    assert made == [KIB64, KIB64, KIB64, 2 * KIB64, 4 * KIB64, 4 * KIB64] and KIB64 == _SMALLEST
    assert pool.total_bytes == sum(made)


def test_buffers_are_used_again():
    pool, made = pool_of()
    for _ in range(1000):
        buffers = [pool.take(nbytes) for nbytes in (5, KIB64 + 5, 9)]
        assert len({buffer.data_ptr() for buffer in buffers}) == 3  # nobody gets what another has
        for buffer in buffers:
            pool.give_back(buffer)
    assert made == [KIB64, 2 * KIB64, KIB64] and pool.total_bytes == 4 * KIB64


def test_beyond_the_limit_there_is_none():
    pool, made = pool_of(4 * KIB64)
    held = [pool.take(1) for _ in range(4)]
    assert pool.take(1) is None and pool.total_bytes == 4 * KIB64
    pool.give_back(held.pop())
    assert pool.take(1) is not None and len(made) == 4
    assert pool_of(KIB64)[0].take(KIB64 + 1) is None


def test_waiting_buffers_of_other_sizes_make_room_the_largest_first():
    pool, made = pool_of(7 * KIB64)
    for size in (1, 2, 4):
        pool.give_back(pool.take(size * KIB64))
    assert pool.total_bytes == 7 * KIB64
    two = [pool.take(2 * KIB64), pool.take(2 * KIB64)]  # the second in place of the 4 that wait
    assert made == [KIB64, 2 * KIB64, 4 * KIB64, 2 * KIB64] and pool.total_bytes == 5 * KIB64
    assert pool.take(4 * KIB64) is None  # all that waits is not enough, and it is let go for nothing
    assert all(buffer is not None for buffer in two)


def test_where_the_machine_has_no_more_the_pool_says_none():
    def refuse(nbytes):
        raise RuntimeError("CUDA error: out of memory")

    pool = PinnedPool(16 * KIB64, refuse)
    assert pool.take(1) is None and pool.total_bytes == 0


def test_many_threads():
    pool, _ = pool_of(64 * KIB64)
    in_use, twice = set(), []

    def work():
        for _ in range(500):
            buffer = pool.take(1)
            if buffer is None:
                continue
            if buffer.data_ptr() in in_use:
                twice.append(buffer)
            in_use.add(buffer.data_ptr())
            in_use.discard(buffer.data_ptr())
            pool.give_back(buffer)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not twice and pool.total_bytes == KIB64 * sum(map(len, pool._waiting.values())) <= 8 * KIB64


def test_giving_back_waits_for_nobody():
    pool, _ = pool_of()
    buffer = pool.take(1)
    with pool._lock:  # as when the last user dies while this thread takes another
        pool.give_back(buffer)
    assert pool.take(1) is buffer


# -- on a CUDA device --------------------------------------------------------------------------------------------------

cuda = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


class TestOnCuda:
    pytestmark = cuda

    @pytest.mark.parametrize("pin_memory", [True, False])
    @pytest.mark.parametrize("nbytes", [1, 1000, KIB64, (1 << 20) + 3])
    def test_bytes_go_and_come_back(self, pin_memory, nbytes):
        link, tally = CudaLink(torch.device("cuda", 0), pin_memory=pin_memory), Tally()
        tensors = [torch.randint(0, 256, (nbytes,), dtype=torch.uint8, device="cuda:0") for _ in range(4)]
        expected = [tensor.clone() for tensor in tensors]
        sent = []
        for tensor in tensors:
            piece = piece_of(tensor)
            sent.append(link.send(bytes_of(tensor, piece), piece, 1, tally))
        assert tally.live_bytes == 4 * nbytes
        del tensor, tensors  # what comes next may get their memory
        noise = [torch.full((nbytes,), 7, dtype=torch.uint8, device="cuda:0") for _ in range(4)]
        for number in (3, 2, 1, 0, 2):  # in the order of backward, and once more
            near, shift = link.bring(sent[number])
            assert torch.equal(near[shift : shift + nbytes], expected[number])
        del sent, noise
        assert tally.live_bytes == 0

    @pytest.mark.parametrize("kind", [offload_to_cpu, offload_to_disk])
    @pytest.mark.parametrize("model", ["mlp", "transformer"])
    def test_gradients_have_the_same_bits(self, kind, model):
        def train(make):
            torch.manual_seed(0)
            torch.cuda.manual_seed_all(0)
            net = (mlp(256, 6) if model == "mlp" else transformer(64, 4, 2)).cuda()
            x = torch.randn((128, 256) if model == "mlp" else (8, 32, 64), device="cuda")
            hooks = make(net)
            for _ in range(3):
                if hooks is None:
                    loss = net(x).pow(2).mean()
                else:
                    with hooks:
                        loss = net(x).pow(2).mean()
                loss.backward()
            return [p.grad for p in net.parameters()], hooks

        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            expected, _ = train(lambda net: None)
            got, hooks = train(lambda net: kind(model=net))
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(torch.equal(a, b) for a, b in zip(expected, got))
        assert hooks.packed == hooks.unpacked > 10 and hooks.bytes_live == 0
        assert "nothing was gained" not in repr(hooks)

    def test_the_peak_of_the_allocator_falls_and_the_pool_stays_level(self):
        net = nn.Sequential(*(layer for _ in range(24) for layer in (nn.Linear(256, 256), nn.Tanh()))).cuda()
        x = torch.randn(1 << 14, 256, device="cuda")  # 16 MiB a layer

        def peak(hooks):
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            if hooks is None:
                loss = net(x).sum()
            else:
                with hooks:
                    loss = net(x).sum()
            loss.backward()
            torch.cuda.synchronize()
            net.zero_grad()
            return torch.cuda.max_memory_allocated() - before

        peak(None)  # workspaces are there now
        plain, hooks = peak(None), offload_to_cpu(net)
        peaks = [peak(hooks) for _ in range(5)]
        assert max(peaks[1:]) < plain / 2
        (link,) = hooks.store._links.values()
        level = link.pool.total_bytes
        assert 0 < level <= link.pool.limit
        for _ in range(20):
            peak(hooks)
        assert link.pool.total_bytes == level and hooks.bytes_live == 0
        assert sum(len(waiting) * size for size, waiting in link.pool._waiting.items()) == level

    def test_without_pinned_memory_and_beyond_the_pool_it_is_slower_and_right(self):
        x = torch.randn(1 << 16, device="cuda", requires_grad=True)
        small = offload_to_cpu()
        small.store._links[x.device] = CudaLink(x.device, pool_bytes=KIB64)  # for less than one tensor
        for hooks in (offload_to_cpu(pin_memory=False), small):
            x.grad = None
            with hooks:
                y = (x * 1).exp().sin().sum()
            y.backward()
            (expected,) = torch.autograd.grad(x.exp().sin().sum(), x)
            assert torch.equal(x.grad, expected) and hooks.packed == hooks.unpacked == 2

    def test_a_write_after_the_save_is_an_error_and_one_before_is_not_seen(self):
        x = torch.ones(1 << 16, device="cuda", requires_grad=True)
        with offload_to_cpu():
            h = x * 1
            y = h * h
        with torch.no_grad():
            h.add_(1)
        with pytest.raises(RuntimeError, match="is at version 1; expected version 0 instead"):
            y.sum().backward()

    def test_backward_on_another_stream(self):
        x = torch.randn(1 << 20, device="cuda", requires_grad=True)
        side = torch.cuda.Stream()
        for _ in range(10):
            x.grad = None
            with offload_to_cpu() as hooks:
                y = (x * 1).exp().sin().tanh().sum()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y.backward()
            torch.cuda.current_stream().wait_stream(side)
            (expected,) = torch.autograd.grad(x.exp().sin().tanh().sum(), x)
            assert torch.equal(x.grad, expected) and hooks.unpacked == 3

    def test_an_input_that_was_filled_anew_without_a_word_is_sent_again(self):
        w, x = torch.ones(1 << 14, device="cuda", requires_grad=True), torch.ones(1 << 14, device="cuda")
        with offload_to_cpu() as hooks:
            first = w * x
            first.exp()
            x.data.fill_(5)
            second = w * x
        assert torch.equal(torch.autograd.grad(second.sum(), w)[0], torch.full_like(w, 5))
        assert torch.equal(torch.autograd.grad(first.sum(), w)[0], torch.ones_like(w)) and hooks.stored == 3
