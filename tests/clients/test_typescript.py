"""Stubs in a second language: ts-proto makes them from the schemas, grpc-js carries the calls."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.installed import PROGRAMS, output_of, system_program
from tests.npm.packages import node_folder
from tests.system.stack import Client

ROOT = Path(__file__).parents[2]
COMPILED = {
    "compilerOptions": {
        "target": "es2022",
        "module": "nodenext",
        "moduleResolution": "nodenext",
        "strict": True,
        "skipLibCheck": True,
        "types": ["node"],
        "outDir": "built",
    },
    "files": ["generate.ts"],
}


pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """The compiled program; types that do not fit the stubs end here."""
    folder, packages = tmp_path_factory.mktemp("typescript"), node_folder() / "node_modules"
    (folder / "node_modules").symlink_to(packages, target_is_directory=True)
    (folder / "tsconfig.json").write_text(json.dumps(COMPILED))
    shutil.copy(PROGRAMS / "generate.ts", folder)
    output_of(
        *(sys.executable, "-m", "grpc_tools.protoc", "-I", str(ROOT)),
        f"--plugin=protoc-gen-ts_proto={packages / '.bin' / 'protoc-gen-ts_proto'}",
        *(f"--ts_proto_out={folder}", "--ts_proto_opt=outputServices=grpc-js,esModuleInterop=true"),
        "protos/radixd/v1/inference.proto",
    )
    output_of(system_program("node"), str(packages / ".bin" / "tsc"), "-p", str(folder))
    return folder / "built" / "generate.js"


async def test_a_program_in_typescript(program, stack):
    said = json.loads(output_of(system_program("node"), str(program), stack.address))
    async with Client(stack.address) as client:
        ids, last = await client.stream(list("héllo".encode()), 8)
        assert said["tokenIds"] == ids
        assert said["finishReason"] == "FINISH_REASON_LENGTH"
        assert said["usage"]["promptTokens"] == last.usage.prompt_tokens == len("héllo".encode())
        assert said["usage"]["completionTokens"] == 8
        assert said["text"]
        assert said["choices"] == [0, 1]
        assert said["code"] == "INVALID_ARGUMENT"
        assert said["message"].startswith("sampling.top_k: ")
        for word in ("google.rpc.ErrorInfo", "INVALID_FIELD", "google.rpc.BadRequest"):
            assert word in said["details"]
        assert said["left"] == "CANCELLED"
        await client.idle()


def test_a_program_that_does_not_fit_the_stubs_is_not_compiled(program):
    source = program.parents[1] / "generate.ts"
    text = source.read_text()
    assert "maxTokens: 8, ignoreEos" in text
    source.write_text(text.replace("maxTokens: 8, ignoreEos", 'maxTokens: "8", ignoreEos'))
    done = subprocess.run(
        [system_program("node"), "node_modules/.bin/tsc", "--noEmit", "-p", "."],
        cwd=source.parent,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode != 0
    assert "generate.ts" in done.stdout
