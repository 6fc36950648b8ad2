"""The store in the memory of the CPU, and its books."""

from __future__ import annotations

import threading

import pytest
import torch

from helpers._far_store import FarStore
from helpers._pieces import bytes_of, piece_of

CPU = torch.device("cpu")


def put(store, tensor):
    piece = piece_of(tensor)
    return store.put(bytes_of(tensor, piece), piece, tensor.element_size()), piece


def test_a_copy_comes_back_and_is_a_copy():
    store, tensor = FarStore(), torch.arange(100.0)
    assert (store.live_bytes, store.from_cpu) == (0, False)
    place, piece = put(store, tensor)
    assert (store.live_bytes, store.from_cpu) == (400, True)
    assert store.same(place, bytes_of(tensor, piece)) is True
    near, shift = store.bring(place, piece, 4, CPU)
    assert near[shift : shift + 400].view(torch.float32).tolist() == tensor.tolist()
    near.fill_(9)  # what backward does with it changes neither the copy nor the tensor
    assert store.same(place, bytes_of(tensor, piece)) is True
    tensor[3] = 9
    assert store.same(place, bytes_of(tensor, piece)) is False
    del place
    assert store.live_bytes == 0


def test_a_copy_that_fails_is_not_in_the_books(monkeypatch):
    class Refuses:
        device = CPU

        def clone(self):
            raise RuntimeError("not enough memory")

    store = FarStore()
    with pytest.raises(RuntimeError, match="not enough memory"):
        store.put(Refuses(), None, 1)
    assert store.live_bytes == 0


def test_books_that_many_threads_write_in():
    store = FarStore()

    def work():
        held = []
        for number in range(300):
            held.append(put(store, torch.ones(number + 1)))
            if len(held) > 5:
                del held[0]

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.live_bytes == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_of_a_device_nothing_is_asked():
    store, tensor = FarStore(), torch.arange(100.0, device="cuda")
    place, piece = put(store, tensor)
    assert store.live_bytes == 400 and store.from_cpu is False
    assert store.same(place, bytes_of(tensor, piece)) is None
    near, shift = store.bring(place, piece, 4, tensor.device)
    assert near.device == tensor.device
    assert near[shift : shift + 400].view(torch.float32).tolist() == tensor.tolist()
    del place
    assert store.live_bytes == 0
