import torch

from ctvr.methods.framefusion_moe import PastGallerySampler

STORED = [torch.arange(6.0).view(3, 2), torch.empty(0), torch.arange(6.0, 10.0).view(2, 2)]  # 5 rows
ALL = torch.arange(10.0).view(5, 2)


def test_all_at_once_is_everything_in_every_step():
    former = PastGallerySampler(all_at_once=True)
    for rows in (2, 1, 4):
        assert torch.equal(former.references(STORED, torch.zeros(rows, 2)), ALL)


def test_batches_run_through_the_store_in_order_and_begin_again():
    former, videos = PastGallerySampler(all_at_once=False), torch.zeros(2, 2)
    found = [former.references(STORED, videos).tolist() for _ in range(5)]
    assert found == [ALL[a:b].tolist() for a, b in ((0, 2), (2, 4), (4, 5), (0, 2), (2, 4))]


def test_a_short_batch_of_pairs_does_not_shorten_its_references():
    former = PastGallerySampler(all_at_once=False)
    assert [len(former.references(STORED, torch.zeros(rows, 2))) for rows in (2, 1, 2)] == [2, 2, 1]


def test_a_task_begins_at_the_first_row_with_what_is_stored_by_then():
    former = PastGallerySampler(all_at_once=False)
    former.references(STORED[:1], torch.zeros(2, 2))
    assert len(former.references(STORED, torch.zeros(2, 2))) == 1  # the task continues with its three rows
    former.restart()
    assert torch.equal(former.references(STORED, torch.zeros(4, 2)), ALL[:4])


def test_a_pass_without_gradients_is_not_a_step():
    former, videos = PastGallerySampler(all_at_once=False), torch.zeros(2, 2)
    with torch.no_grad():  # before the first step, of another size
        assert torch.equal(former.references(STORED, torch.zeros(1, 2)), ALL[:1])
    found = [former.references(STORED, videos)]
    with torch.no_grad():
        assert torch.equal(former.references(STORED, videos), ALL[2:4])
    found.append(former.references(STORED, videos))
    assert torch.equal(torch.cat(found), ALL[:4])


def test_nothing_stored_is_no_reference():
    for at_once in (True, False):
        assert PastGallerySampler(at_once).references([], torch.zeros(3, 2)).shape == (0, 2)
