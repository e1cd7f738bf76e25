// Variables over a mesh in a file: saved under one mesh, restored under another.
#include "lockstep/train/saved_variables.hpp"

#include <catch2/catch.hpp>

#include "tests/support/layouts.hpp"
#include "tests/support/refusal.hpp"
#include "tests/support/temporary_folder.hpp"

using namespace lockstep;
using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using test::counting;

namespace {

constexpr auto none = Layout::unsharded;

std::vector<DVariable<float>> variables(Mesh& mesh, const Layout& weight, float factor) {
  const auto times = [&](float v) { return v * factor; };
  std::vector<DVariable<float>> all;
  all.emplace_back("weight", copy_to_mesh(mesh, counting<float>({5, 6}).map(times), weight));
  all.emplace_back("rate", copy_to_mesh(mesh, Tensor<float>(factor), Layout(mesh, {})));
  return all;
}

}  // namespace

TEST_CASE("variables are restored under any mesh and layout", "[mesh]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "weights.safetensors";
  test::on_all(3, [&](comm::Communicator& comm) {
    Mesh mesh(comm, {{"a", 3}});
    train::save_variables(path, variables(mesh, Layout(mesh, {none, "a"}), 2));
    return 0;
  });
  for (const auto& dimensions : test::meshes_of(4)) {
    CHECK(test::on_all(4, [&](comm::Communicator& comm) -> std::string {
            Mesh mesh(comm, dimensions);
            for (const auto& layout : test::layouts_of(mesh, 2)) {
              auto restored = variables(mesh, layout, 0);
              train::restore_variables(path, restored);
              const auto expected = variables(mesh, layout, 2);
              for (std::size_t i = 0; i < expected.size(); ++i) {
                const bool same = restored[i].unpack() == expected[i].unpack() &&
                                  restored[i].layout() == expected[i].layout();
                if (!comm.all_agree(same)) return to_text(layout);
              }
            }
            return "";
          }) == "");
  }
}

TEST_CASE("files of variables that cannot be are refused, and nothing changes", "[mesh]") {
  const test::TemporaryFolder folder;
  const auto refusal = [](auto body) {
    return test::refusal(2, [&](comm::Communicator& comm) {
      Mesh mesh(comm, {{"a", 2}});
      auto all = variables(mesh, Layout(mesh, {"a", none}), 3);
      try {
        body(all);
      } catch (...) {
        if (all[0].to_global().values()[1] != 6) throw std::logic_error("a variable has changed");
        throw;
      }
    });
  };
  const auto path = folder.path() / "file";
  CHECK_THAT(refusal([&](auto& all) { train::restore_variables(path, all); }), StartsWith("65: "));
  CHECK_THAT(refusal([&](auto& all) { train::save_variables(folder.path() / "no/file", all); }),
             StartsWith("74: "));
  CHECK_THAT(refusal([&](auto& all) {
               all.emplace_back("rate", all[0]);
               train::save_variables(path, all);
             }),
             StartsWith("2: two variables are called \"rate\""));
  CHECK_THAT(refusal([&](auto& all) {
               train::save_variables(path, std::span(all).first(1));
               train::restore_variables(path, all);
             }),
             StartsWith("65: ") && Contains("rate"));
}
