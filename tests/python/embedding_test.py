"""The guide for C++ users (docs/embedding.md): its programs are those of examples/guide, and do what the page says."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import BUILD, ENVIRONMENT

torch = pytest.importorskip("torch")
from safetensors.torch import load_file  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "embedding.md").read_text()
PROGRAMS = sorted((ROOT / "examples" / "guide").glob("*.cpp"))
# Built with the compiler of Echelon's own build, and through ccache where that has it.
CACHE = dict(re.findall(r"^([A-Za-z_]+):[A-Z]+=(.*)$", (BUILD / "CMakeCache.txt").read_text(), re.MULTILINE))
LAYOUTS = {"data": [], "zero": ["parallel.zero=3"], "pipeline": ["parallel.pipeline=2"],
           "offload": ["parallel.zero=3", "zero.offload=host"]}


@pytest.fixture(scope="module", autouse=True)
def guide():
    """Installs Echelon, and builds examples/guide against the package as its CMakeLists.txt says."""
    work = BUILD / "guide_example"
    configure = ["cmake", "-G", "Ninja", "-S", ROOT / "examples" / "guide", "-B", work / "build", "-DCMAKE_CXX_FLAGS=-O1",
                 f"-DCMAKE_PREFIX_PATH={work / 'prefix'}", f"-DCMAKE_CXX_COMPILER={CACHE['CMAKE_CXX_COMPILER']}"]
    if "ccache" in CACHE.get("CMAKE_CXX_COMPILER_LAUNCHER", ""):
        configure.append("-DCMAKE_CXX_COMPILER_LAUNCHER=ccache")
    for command in (["cmake", "--install", BUILD, "--prefix", work / "prefix", "--component", "Unspecified"], configure,
                    ["cmake", "--build", work / "build"]):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def run(folder, program, *options, ranks=1):
    command = [BUILD / "guide_example" / "build" / program, *options]
    if ranks > 1:
        command = [BUILD / "echelon", "launch", "--no-prefix", "--nproc", ranks, "--", *command]
    folder.mkdir(exist_ok=True)
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=240,
                          stdin=subprocess.DEVNULL, env=ENVIRONMENT)


def run_well(*arguments, **keywords):
    result = run(*arguments, **keywords)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_the_page_shows_the_program_as_it_is(program):
    assert f"```cpp\n{program.read_text()}```" in PAGE, f"docs/embedding.md does not show examples/guide/{program.name}"


def test_the_page_shows_no_other_program():
    assert len(re.findall(r"```cpp\n", PAGE)) == len(PROGRAMS)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone")
    run_well(folder, "train")
    return folder


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_leaves_the_weights_of_one_process(alone, tmp_path, layout):
    said = run_well(tmp_path, "train", *LAYOUTS[layout], ranks=2)
    learnt = re.search(r"learnt (\S+) and (\S+)", said)
    assert learnt.group(1) == learnt.group(2), said
    ours, theirs = load_file(tmp_path / "net.safetensors"), load_file(alone / "net.safetensors")
    assert sorted(ours) == sorted(theirs) == ["body.lift.bias", "body.lift.weight", "body.mix.bias", "body.mix.weight",
                                              "head.bias", "head.weight"]
    for name, value in theirs.items():
        assert ours[name].dtype == torch.float32 and ours[name].abs().max() > 0
        # 400 steps in fp32, summed in another order.
        assert torch.allclose(ours[name], value, rtol=0, atol=0.02), (name, (ours[name] - value).abs().max())


def test_weights_compute_in_python_what_the_program_printed(alone):
    weights = load_file(alone / "net.safetensors")
    x = torch.ones(1, 1)
    for layer in ("body.lift", "body.mix"):
        x = torch.tanh(x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"])
    y = (x @ weights["head.weight"].T + weights["head.bias"]).item()
    assert abs(y - 0.841) < 0.1, y


def test_a_module_that_torch_saved_after_gather_holds_the_trained_parameters(tmp_path):
    run_well(tmp_path, "train", "parallel.zero=3", ranks=2)
    saved = torch.jit.load(tmp_path / "body.pt")
    weights = load_file(tmp_path / "net.safetensors")
    parameters = dict(saved.named_parameters())
    assert sorted(parameters) == ["lift.bias", "lift.weight", "mix.bias", "mix.weight"]
    for name, value in parameters.items():
        assert torch.equal(value.detach(), weights["body." + name]), name


def test_a_second_run_goes_on_from_the_saved_state(tmp_path):
    first = run_well(tmp_path, "train", "parallel.zero=3", ranks=2)
    weights = load_file(tmp_path / "net.safetensors")
    second = run_well(tmp_path, "train", "parallel.zero=3", ranks=2)
    assert "step 100 " in first and "step 100 " not in second and "step 300 " in second
    again = load_file(tmp_path / "net.safetensors")
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_the_commands_of_the_page_work_one_after_the_other(tmp_path):
    commands = re.search(r"```sh\n(build/train.*?)```", PAGE, re.DOTALL).group(1).splitlines()
    (tmp_path / "build").symlink_to(BUILD / "guide_example" / "build")
    environment = ENVIRONMENT | {"PATH": f"{BUILD}:{ENVIRONMENT['PATH']}"}
    trained, nets = [], []
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240,
                              stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        if "train" in command:
            steps = [int(step) for step in re.findall(r"step (\d+)  loss", done.stdout)]
            trained.append((steps[0], steps[-1]))
            nets.append(load_file(tmp_path / "net.safetensors"))
    begun, resumed = (100, 400), (300, 400)  # of those that are printed; the state is that after step 200
    assert trained == [begun, resumed, (100, 1000), begun, resumed, resumed], list(zip(commands, trained))
    # The same bits in the same layout, and to rounding in others.
    for name, value in nets[0].items():
        assert torch.equal(nets[1][name], value), name
        for other in nets[3:]:
            assert torch.allclose(other[name], value, rtol=0, atol=0.02), (name, (other[name] - value).abs().max())


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("program", ["finetune", "loop", "custom"])
def test_the_other_programs_run(tmp_path, program, ranks):
    run_well(tmp_path, program, ranks=ranks)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_optimiser_of_a_users_own_works_in_every_layout(tmp_path, layout):
    """The program itself checks that a restored state goes on with the same bits."""
    losses = [float(re.search(r"loss (\S+),", run_well(tmp_path / str(ranks), "custom", *options, ranks=ranks)).group(1))
              for ranks, options in ((1, []), (2, LAYOUTS[layout]))]
    assert losses[0] == pytest.approx(losses[1], rel=0.05), losses


def test_batch_norm_over_all_ranks_is_that_of_one_process(tmp_path):
    numbers = [[float(number) for number in re.findall(r"-?\d+\.\d+", run_well(tmp_path, "batch_norm", ranks=ranks))]
               for ranks in (1, 2, 3)]
    assert all(len(one) == 3 for one in numbers)
    for other in numbers[1:]:  # 100 steps in fp32
        assert max(abs(a - b) for a, b in zip(numbers[0], other)) < 2e-3, numbers


@pytest.mark.parametrize("option, says", [
    ("parallel.zero=4", "parallel.zero"),
    ("parallel.shares=sped", "speed"),
    ("train.steps=x", "train.steps"),
])
def test_an_option_that_is_wrong_is_named(tmp_path, option, says):
    result = run(tmp_path, "train", option)
    assert result.returncode == 1 and says in result.stderr and result.stderr.count("\n") == 1, result.stderr
