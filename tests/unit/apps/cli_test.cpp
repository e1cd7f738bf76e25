#include "apps/cli.hpp"

#include <catch2/catch.hpp>

#include "lib/base/errors.hpp"

using namespace lockstep;
using apps::with_flags;

TEST_CASE("options in a library's message are printed as flags", "[cli]") {
  CHECK(with_flags("use `rebatch=ceil`, or `batch_size` of at least 4") ==
        "use --rebatch ceil, or --batch-size of at least 4");
  CHECK(with_flags("leave `backend` out, or set `share_device=true`") ==
        "leave --backend out, or set --share-device");
  CHECK(with_flags("choose more `files`") == "choose more --files");
  CHECK(with_flags("`data=synthetic`") == "--data synthetic");
}

TEST_CASE("other words in backquotes stay as they are", "[cli]") {
  for (const char* text :
       {"start it with `srun --mpi=pmix -K program ...`", "`mpirun -n 4`, then `unknown=1`",
        "`lockstep plan --help` lists them", "run.toml:3: rebatch: 'x' is none of ceil|balanced",
        "one ` alone", "", "`batch-size` is the flag's own name"}) {
    CHECK(with_flags(text) == text);
  }
}

TEST_CASE("flags are written in errors that passed through other ranks as text", "[cli]") {
  const Error error(ExitCode::usage, "rank 1 on h2: too few", "use a larger `batch_size`");
  const Error agreed(ExitCode::usage, error.what());
  CHECK(agreed.problem() == "rank 1 on h2: too few");
  CHECK(agreed.remedy() == "use a larger `batch_size`");
  CHECK(with_flags(agreed.what()) == "rank 1 on h2: too few\n  remedy: use a larger --batch-size");
}

TEST_CASE("an error about one option carries its name and value", "[cli]") {
  const ConfigError error({"batch_size", "0"}, "0 is less than 1", "give at least 1");
  CHECK(error.what() == std::string("batch_size: 0 is less than 1\n  remedy: give at least 1"));
  REQUIRE(error.option() != nullptr);
  CHECK(error.option()->name == "batch_size");
  CHECK(error.option()->value == "0");
  CHECK(ConfigError("several settings disagree").option() == nullptr);
}
