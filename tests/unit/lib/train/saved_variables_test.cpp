// Variables over a mesh in a file: saved under one mesh, restored under another.
#include "lockstep/train/saved_variables.hpp"

#include <catch2/catch.hpp>
#include <fstream>

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

TEST_CASE("variables without elements are restored in any order", "[mesh]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path() / "weights.safetensors";
  const auto weight = test::on_all(2, [&](comm::Communicator& comm) {
    Mesh mesh(comm, {{"a", 2}});
    auto all = variables(mesh, Layout(mesh, {none, "a"}), 2);
    all.emplace_back(std::string(248, 'n'),
                     zeros<float>(mesh, {0, 3}, Layout::replicated(mesh, 2)));
    train::save_variables(path, all);
    std::swap(all[0], all[2]);
    train::restore_variables(path, all);
    return all[2].to_global();
  });
  CHECK(weight == counting<float>({5, 6}).map([](float v) { return 2 * v; }));
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
  for (const auto& name :
       std::vector<std::string>{"", "__metadata__", "\xff", std::string(249, 'n')}) {
    CHECK_THAT(refusal([&](auto& all) {
                 all.emplace_back(name, all[0]);
                 train::save_variables(path, all);
               }),
               StartsWith("2: a file cannot have a variable called"));
  }
  CHECK_THAT(refusal([&](auto& all) {
               const int rank = all[0].mesh().communicator().rank();
               all.emplace_back("of rank " + std::to_string(rank), all[0]);
               train::save_variables(path, all);
             }),
             StartsWith("2: ") && Contains("of rank 1"));
  // The ranks read the same weight, and different rates: neither is assigned.
  CHECK_THAT(refusal([&](auto& all) {
               auto& mesh = all[0].mesh();
               auto saved = variables(mesh, Layout(mesh, {"a", none}), 5);
               train::save_variables(folder.path() / "0", saved);
               saved[1].assign_add(filled(mesh, {}, 1.0F, Layout(mesh, {})));
               train::save_variables(folder.path() / "1", saved);
               train::restore_variables(folder.path() / std::to_string(mesh.communicator().rank()),
                                        all);
             }),
             StartsWith("70: "));
  CHECK_THAT(refusal([&](auto& all) {
               auto& comm = all[0].mesh().communicator();
               train::save_variables(path, variables(all[0].mesh(), all[0].layout(), 5));
               if (comm.rank() == 0) {  // a bit of the last value
                 std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
                 file.seekp(-1, std::ios::end);
                 file.put('\x01');
               }
               comm.all_agree(true);
               train::restore_variables(path, all);
             }),
             StartsWith("65: ") && Contains("the checksum of"));
  CHECK_THAT(refusal([&](auto& all) {
               train::save_variables(path, std::span(all).first(1));
               train::restore_variables(path, all);
             }),
             StartsWith("65: ") && Contains("rate"));
}
