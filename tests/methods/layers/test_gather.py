import copy

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn

from methods.layers.gather import gather, world_size
from methods.layers.losses import contrastive

WORKERS = 2


def model():
    torch.manual_seed(0)
    return nn.ModuleDict({"text": nn.Linear(5, 4), "video": nn.Linear(6, 4)})


def inputs():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 5, generator=generator), torch.randn(8, 6, generator=generator)


def loss_of(net, texts, videos):
    q = F.normalize(gather(net["text"](texts)), dim=-1)
    v = F.normalize(gather(net["video"](videos)), dim=-1)
    return contrastive(10 * q @ v.mT)


def worker(rank, folder):
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORKERS)
    try:
        net, (texts, videos) = model(), inputs()
        loss = loss_of(net, texts[rank::WORKERS], videos[rank::WORKERS])
        loss.backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= WORKERS
        words = torch.ones(2, 3 + rank, 4, requires_grad=True)  # captions of different length on each worker
        gathered = gather(words)
        (gathered * (1 + rank)).sum().backward()
        torch.save(
            {
                "loss": loss.detach(),
                "grads": [p.grad for p in net.parameters()],
                "ids": gather(torch.tensor([rank, 10 + rank])),
                "words": gathered.detach(),
                "words_grad": words.grad,
            },
            f"{folder}/{rank}.pt",
        )
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gather")
    mp.spawn(worker, args=(str(folder),), nprocs=WORKERS)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORKERS)]


@pytest.mark.slow
def test_averaged_gradients_of_the_gathered_loss_are_those_of_one_large_batch(found):
    net, (texts, videos) = model(), inputs()
    order = [*range(0, 8, WORKERS), *range(1, 8, WORKERS)]
    loss = loss_of(net, texts[order], videos[order])
    loss.backward()
    for one in found:
        torch.testing.assert_close(one["loss"], loss.detach())
        for grad, parameter in zip(one["grads"], net.parameters()):
            torch.testing.assert_close(grad, parameter.grad)


@pytest.mark.slow
def test_ids_are_gathered_in_rank_order(found):
    for one in found:
        assert one["ids"].tolist() == [0, 10, 1, 11]


@pytest.mark.slow
def test_words_of_unequal_length_are_padded_with_zeros(found):
    for rank, one in enumerate(found):
        assert one["words"].shape == (4, 4, 4)
        assert one["words"][:2, 3].abs().max() == 0
        assert one["words"][2:, 3].min() == 1
        assert one["words_grad"].shape == (2, 3 + rank, 4)
        assert one["words_grad"].unique().tolist() == [3.0]  # 1 from rank 0 and 2 from rank 1


def test_alone_gather_returns_what_it_was_given():
    x = copy.copy(torch.randn(3, 2))
    assert gather(x) is x
    assert world_size() == 1
