"""torch.distributed over the backend "echelon": every collective, DDP and FSDP beside Gloo, and a rank that dies.

Ranks are forked from a server that has imported torch, so that a world takes a moment to start.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402

BUILD = Path(os.environ.get("ECHELON_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
if not (BUILD / "python" / "echelon" / "__init__.py").exists():
    pytest.skip(f"{BUILD} has no Python package (it was built without Python.h)", allow_module_level=True)
sys.path.insert(0, str(BUILD / "python"))
import echelon  # noqa: E402, F401

FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["torch", "torch.distributed.fsdp", "torch.nn.parallel"])
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def as_rank(body, rank, world, meeting, answers, settings, arguments):
    os.environ.update(settings)
    torch.set_num_threads(1)
    try:
        dist.init_process_group("echelon", init_method=f"file://{meeting}", rank=rank, world_size=world,
                                timeout=timedelta(seconds=30))
        answer = body(rank, world, *arguments)
        dist.destroy_process_group()
        answers.put((rank, "done", answer))
    except BaseException:
        answers.put((rank, "failed", traceback.format_exc()))


def run(world, body, tmp_path, *arguments, settings=None, expected=None):
    """The body on all ranks; gives their answers by rank. `expected`: how many ranks answer at all."""
    answers = FORKING.Queue()
    ranks = [FORKING.Process(target=as_rank, daemon=True,
                             args=(body, r, world, tmp_path / "meeting", answers, settings or {}, arguments))
             for r in range(world)]
    for rank in ranks:
        rank.start()
    found = {}
    try:
        for _ in range(world if expected is None else expected):
            rank, outcome, answer = answers.get(timeout=60)
            assert outcome == "done", f"rank {rank}: {answer}"
            found[rank] = answer
    finally:
        for rank in ranks:
            rank.join(5 if len(found) == (expected or world) else 0)
            rank.kill()
    return found


def equal(got, wanted):
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def backend():
    return dist.group.WORLD._get_backend(torch.device("cpu"))


def part(rank, dtype, count=7):
    """Small integers, exact in every type, different on each rank and at each place."""
    return (torch.arange(count) % 3 + rank + 1).to(dtype)


def collectives(rank, world):
    op = dist.ReduceOp
    folds = {op.SUM: torch.Tensor.sum, op.PRODUCT: torch.Tensor.prod, op.MIN: torch.Tensor.amin,
             op.MAX: torch.Tensor.amax}
    for dtype in INTEGERS + FLOATS:
        all_parts = torch.stack([part(r, dtype) for r in range(world)])
        mine = part(rank, dtype)
        for how, fold in folds.items():
            data = mine.clone()
            dist.all_reduce(data, how)
            equal(data, fold(all_parts.double(), dim=0).to(dtype))
        data = mine.clone()
        dist.reduce(data, dst=world - 1)
        if rank == world - 1:
            equal(data, all_parts.double().sum(0).to(dtype))
        data = mine.clone()
        dist.broadcast(data, src=1)
        equal(data, part(1, dtype))
        outputs = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(outputs, mine)
        equal(torch.stack(outputs), all_parts)
        output = torch.empty(world * 7, dtype=dtype)
        dist.all_gather_into_tensor(output, mine)
        equal(output.view(world, 7), all_parts)
        outputs = [torch.empty_like(mine) for _ in range(world)] if rank == 1 else None
        dist.gather(mine, outputs, dst=1)
        if rank == 1:
            equal(torch.stack(outputs), all_parts)
        output = torch.empty_like(mine)
        dist.scatter(output, list(all_parts) if rank == 0 else None, src=0)
        equal(output, mine)
        whole = torch.stack([part(rank + r, dtype) for r in range(world)])
        expected = sum(part(r + rank, dtype).double() for r in range(world)).to(dtype)
        output = torch.empty_like(mine)
        dist.reduce_scatter_tensor(output, whole.view(-1))
        equal(output, expected)
        output = torch.empty_like(mine)
        dist.reduce_scatter(output, list(whole))
        equal(output, expected)
        output = torch.empty_like(whole)
        dist.all_to_all_single(output, whole)
        equal(output, torch.stack([part(r + rank, dtype) for r in range(world)]))
    for dtype in FLOATS:
        data = part(rank, dtype)
        dist.all_reduce(data, op.AVG)
        mean = sum(part(r, torch.float64) for r in range(world)) / world
        torch.testing.assert_close(data, mean.to(dtype))
    for dtype in INTEGERS + [torch.bool]:
        for how, fold in {op.BAND: torch.bitwise_and, op.BOR: torch.bitwise_or, op.BXOR: torch.bitwise_xor}.items():
            data, expected = part(rank, dtype), part(0, dtype)
            dist.all_reduce(data, how)
            for r in range(1, world):
                expected = fold(expected, part(r, dtype))
            equal(data, expected)
    with pytest.raises(RuntimeError, match="PREMUL_SUM"):
        dist.all_reduce(part(rank, torch.float32), dist._make_nccl_premul_sum(2.0))
    with pytest.raises(RuntimeError, match="average"):
        dist.all_reduce(part(rank, torch.int64), op.AVG)


def shapes(rank, world):
    """Tensors that are not one piece of memory, empty, complex, of a type that can only be moved, or uneven."""
    matrix = torch.full((4, 6), float(rank + 1))
    column = matrix[:, 1:3]
    dist.all_reduce(column)
    total = world * (world + 1) / 2
    equal(matrix[:, 1:3], torch.full((4, 2), total))
    equal(matrix[:, 0], torch.full((4,), float(rank + 1)))
    outputs = [torch.empty(6, 4).t() for _ in range(world)]
    dist.all_gather(outputs, torch.full((6, 4), float(rank)).t())
    for r, output in enumerate(outputs):
        equal(output, torch.full((4, 6), float(r)))
    for sizes in [(0,), (3, 0)]:
        empty = torch.empty(sizes)
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
        dist.all_gather([torch.empty(sizes) for _ in range(world)], empty)
        dist.all_to_all_single(torch.empty(0), torch.empty(0))
    number = torch.complex(torch.tensor([1.0, 2.0]), torch.tensor([0.5, rank + 1.0])).conj()
    backend().allreduce([number], dist.AllreduceOptions()).wait()  # torch's dispatcher hands on copies of conjugates
    equal(number, torch.complex(torch.tensor([1.0, 2.0]) * world, -torch.tensor([0.5 * world, total])))
    for dtype in [torch.complex64, torch.int16, torch.float8_e4m3fn]:
        data = torch.tensor([1.0, 2.0, 4.0]).to(dtype) if rank == 0 else torch.zeros(3).to(dtype)
        dist.broadcast(data, 0)
        assert data.to(torch.complex64).tolist() == [1, 2, 4]
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    assert scalar.item() == world * (world - 1) / 2
    outputs = [torch.empty(r + 1) for r in range(world)]
    dist.all_gather(outputs, torch.full((rank + 1,), float(rank)))
    for r, output in enumerate(outputs):
        equal(output, torch.full((r + 1,), float(r)))
    there = [(rank + r) % 3 for r in range(world)]  # rows for rank r; the same from it
    output = torch.empty(sum(there), 2)
    dist.all_to_all_single(output, torch.full((sum(there), 2), float(rank)), there, there)
    equal(output, torch.cat([torch.full((n, 2), float(r)) for r, n in enumerate(there)]))
    outputs = [torch.empty(r + rank) for r in range(world)]
    dist.all_to_all(outputs, [torch.full((rank + r,), float(rank)) for r in range(world)])
    for r, output in enumerate(outputs):
        equal(output, torch.full((r + rank,), float(r)))
    sparse = torch.sparse_coo_tensor([[0, rank + 1]], [[1.0, 2.0], [3.0, 4.0]], (world + 1, 2))
    dist.all_reduce(sparse)
    expected = torch.cat([torch.tensor([[1.0, 2.0]]) * world, torch.tensor([[3.0, 4.0]]).repeat(world, 1)])
    equal(sparse.to_dense(), expected)
    parameter = torch.nn.Parameter(torch.full((4, 2), float(rank)).t())
    dist.broadcast(parameter, 1)
    equal(parameter.detach(), torch.full((2, 4), 1.0))


def asynchronous(rank, world):
    """Works, futures and messages."""
    total = world * (world + 1) / 2
    tensors = [torch.full((n,), float(rank + 1)) for n in (1, 1000, 100000)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work, tensor in zip(reversed(works), reversed(tensors)):
        assert work.wait()
        assert work.is_completed() and work.is_success()
        equal(work.result()[0], tensor)
        equal(tensor, torch.full_like(tensor, total))
    data = torch.full((5,), float(rank + 1))
    doubled = dist.all_reduce(data, async_op=True).get_future().then(lambda future: future.value()[0] * 2)
    equal(doubled.wait(), torch.full((5,), 2 * total))

    def again(future):  # a callback that waits for another operation, as PowerSGD's does
        return dist.all_reduce(future.value()[0].clone(), async_op=True).get_future().wait()[0]

    data = torch.full((5,), float(rank + 1))
    equal(dist.all_reduce(data, async_op=True).get_future().then(again).wait(), torch.full((5,), total * world))
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as works:
        tensors = [torch.full((3,), float(rank + 1)) for _ in range(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    works.wait()
    for tensor in tensors:
        equal(tensor, torch.full((3,), total))

    after, before = (rank + 1) % world, (rank - 1) % world
    box = torch.empty(4)
    works = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.full((4,), float(rank)), after),
                                    dist.P2POp(dist.irecv, box, before)])
    for work in works:
        work.wait()
    equal(box, torch.full((4,), float(before)))
    if rank == 0:
        for tag in (2, 1):
            for _ in range(1, world):
                box = torch.empty(1)
                assert dist.recv(box, tag=tag) == int(box)
    else:
        works = [dist.isend(torch.tensor([float(rank)]), 0, tag=tag) for tag in (1, 2)]
        for work in works:
            work.wait()
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * (10 * rank)})
    assert [one["rank"] for one in objects] == list(range(world))
    dist.barrier()


def subgroups(rank, world):
    halves = [dist.new_group(list(range(0, world, 2))), dist.new_group([world - 1, 1])]
    for group, members in zip(halves, ([r for r in range(0, world, 2)], [1, world - 1])):
        if rank not in members:
            continue
        data = torch.tensor([float(rank)])
        dist.all_reduce(data, group=group)
        assert data.item() == sum(members)
        data = torch.tensor([float(rank)])
        dist.broadcast(data, src=members[-1], group=group)
        assert data.item() == members[-1]
        assert dist.get_rank(group) == members.index(rank)
    mesh = dist.device_mesh.init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("rows", "columns"))
    data = torch.tensor([float(rank)])
    dist.all_reduce(data, group=mesh.get_group("columns"))
    first = rank // (world // 2) * (world // 2)
    assert data.item() == sum(range(first, first + world // 2))
    whole = [dist.new_group() for _ in range(3)]
    works = [dist.all_reduce(torch.ones(1000), group=group, async_op=True) for group in whole]
    for work in reversed(works):
        work.wait()
    for group in whole:
        dist.destroy_process_group(group)


def trained(wrap, rank, world, group):
    """A tiny model after three steps, each rank with its own batch."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 16), torch.nn.Tanh(),
                                torch.nn.Linear(16, 4))
    model = wrap(model, group)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        torch.manual_seed(100 * rank + step)
        loss = torch.nn.functional.mse_loss(model(torch.randn(5, 8)), torch.randn(5, 4))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return [getattr(p, "full_tensor", lambda p=p: p)().detach() for p in model.parameters()]


def ddp(model, group):
    return torch.nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.001)


def ddp_powersgd(model, group):
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

    # One bucket: with several, ranks would start the hook's operations in different orders, over any backend.
    model = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    model.register_comm_hook(power.PowerSGDState(group, matrix_approximation_rank=1, start_powerSGD_iter=2),
                             power.powerSGD_hook)
    return model


def fsdp2(model, group):
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu")
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def beside_gloo(rank, world):
    gloo = dist.new_group(backend="gloo")
    for wrap in (ddp, ddp_powersgd, fsdp2):
        ours, theirs = (trained(wrap, rank, world, group) for group in (dist.group.WORLD, gloo))
        for one, other in zip(ours, theirs, strict=True):
            if world == 2 and wrap is not ddp_powersgd:  # one addition: nothing to round differently
                equal(one, other)
            else:
                torch.testing.assert_close(one, other)


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("body", [collectives, shapes, asynchronous, beside_gloo])
def test_gives_what_torch_says(body, world, tmp_path):
    run(world, body, tmp_path)


def test_new_groups_of_some_ranks(tmp_path):
    run(4, subgroups, tmp_path)


def test_options_come_from_the_environment(tmp_path):
    run(2, shapes, tmp_path, settings={"ECHELON_SET": "net.shared_memory=false net.tls=true comm.algorithm=ring"})


def test_a_job_of_torchrun(tmp_path):
    """As python/README.md says."""
    (tmp_path / "train.py").write_text("""
import torch
import torch.distributed as dist
import echelon

dist.init_process_group("echelon")
data = torch.ones(3)
dist.all_reduce(data)
print(f"sum {data.tolist()}\\n", end="", flush=True)
dist.destroy_process_group()
""")
    result = subprocess.run([sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                             "train.py"], cwd=tmp_path, text=True, capture_output=True, timeout=60,
                            env={**os.environ, "PYTHONPATH": str(BUILD / "python"), "OMP_NUM_THREADS": "1"})
    assert result.stdout.count("sum [2.0, 2.0, 2.0]") == 2, result.stdout + result.stderr


def wrong_option(rank, world):
    pass


def test_a_wrong_option_is_named(tmp_path):
    with pytest.raises(AssertionError, match="comm.algorithm"):
        run(2, wrong_option, tmp_path, settings={"ECHELON_SET": "comm.algoritm=ring"})


def late(rank, world):
    """Rank 1 does not come: the others' wait ends at its timeout, and says who is missing."""
    if rank == 1:
        time.sleep(3)
        return None
    with pytest.raises(dist.DistBackendError, match="rank 1"):
        options = dist.AllreduceOptions()
        options.timeout = timedelta(milliseconds=300)
        backend().allreduce([torch.ones(3)], options).wait()
    return None


def test_a_call_has_its_own_timeout(tmp_path):
    run(2, late, tmp_path)


def disagree(rank, world):
    with pytest.raises(RuntimeError, match="disagree|differ"):
        dist.all_reduce(torch.ones(3 + rank))


def test_ranks_that_call_different_things_are_told(tmp_path):
    run(2, disagree, tmp_path)


def bereft(rank, world):
    dist.all_reduce(torch.ones(3))
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    started = time.monotonic()
    try:
        for _ in range(1000):
            dist.all_reduce(torch.ones(3))
    except dist.DistBackendError as error:
        return time.monotonic() - started, str(error)
    return None


def test_a_killed_rank_is_named_within_seconds(tmp_path):
    answers = run(4, bereft, tmp_path, expected=3)
    for seconds, message in answers.values():
        assert "rank 1" in message and "lost" in message, message
        assert seconds < 5
