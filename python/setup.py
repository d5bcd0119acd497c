"""Puts the library into the package when it has been built, and leaves no files behind in the source."""

import pathlib
import re
import shutil
import tempfile

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIBRARY = ROOT / "build/libinferscale-connector.so"


class Build(build_py):
    def run(self):
        super().run()
        if LIBRARY.exists():
            shutil.copy(LIBRARY, pathlib.Path(self.build_lib) / "inferscale_vllm")


class Package(Distribution):
    def has_ext_modules(self):
        return LIBRARY.exists()


class Wheel(bdist_wheel):
    """With the library it is for one kind of machine, and for any Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


version = re.search(r'IS_VERSION "(.+)"', (ROOT / "include/inferscale.h").read_text()).group(1)
with tempfile.TemporaryDirectory() as scratch:
    setup(version=version, distclass=Package, cmdclass={"build_py": Build, "bdist_wheel": Wheel},
          options={"build": {"build_base": scratch}, "egg_info": {"egg_base": scratch}})
