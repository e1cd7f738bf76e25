#include "lockstep/data/file.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>

#include "lockstep/base/errors.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using Catch::Matchers::Contains;
using Catch::Matchers::StartsWith;
using data::Content;

/// More than stays in memory, and without a pattern.
Bytes large() {
  Bytes bytes(3 * Content::max_in_memory + 17);
  std::uint32_t state = 1;
  for (auto& byte : bytes)
    byte = static_cast<std::uint8_t>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

Bytes at(Content& content, std::uint64_t offset, std::size_t size) {
  Bytes bytes(size);
  content.read_at(offset, bytes);
  return bytes;
}

/// Sets TMPDIR for a while.
class TemporaryPlace {
 public:
  explicit TemporaryPlace(const std::string& path) {
    const char* const before = std::getenv("TMPDIR");
    if (before != nullptr) before_ = before;
    ::setenv("TMPDIR", path.c_str(), 1);
  }
  ~TemporaryPlace() {
    if (before_.empty())
      ::unsetenv("TMPDIR");
    else
      ::setenv("TMPDIR", before_.c_str(), 1);
  }
  TemporaryPlace(const TemporaryPlace&) = delete;
  TemporaryPlace& operator=(const TemporaryPlace&) = delete;

 private:
  std::string before_;
};

TEST_CASE("plain and compressed content are the same, wherever they are read", "[data]") {
  const TemporaryFolder folder;
  const Bytes whole = large();
  Content plain(folder.write("plain", whole));
  Content packed(folder.write("packed.gz", gzip(whole)));
  const TemporaryFolder spill;
  const TemporaryPlace place(spill.path().string());
  packed.finish();
  CHECK(std::filesystem::is_empty(spill.path()));  // the file there has no name
  REQUIRE(packed.size() == whole.size());
  const std::uint64_t edge = Content::max_in_memory;
  for (const std::uint64_t offset :
       {std::uint64_t{0}, edge - 1, edge - 50, edge, 2 * edge, whole.size() - 100}) {
    CHECK(at(packed, offset, 100) == at(plain, offset, 100));
  }
  CHECK_THROWS_AS(at(packed, whole.size() - 99, 100), DataError);
  CHECK_THROWS_AS(at(packed, ~std::uint64_t{0}, 100), DataError);
}

TEST_CASE("compressed content keeps and allows as much as it is told", "[data]") {
  const TemporaryFolder folder;
  const Bytes whole = large();
  const auto path = folder.write("packed.gz", gzip(whole));
  Content few(path);
  few.finish(whole.size(), 10);
  CHECK(few.size() == whole.size());
  CHECK(at(few, 0, 10).size() == 10);
  CHECK_THROWS_AS(at(few, 0, 11), DataError);
  Content more(path);
  CHECK_THAT(message_of<DataError>([&] { more.finish(whole.size() - 1); }),
             StartsWith(path.string() + ": byte ") && Contains("go on"));
  Content header(path);
  CHECK(at(header, 5, 3) == Bytes(whole.begin() + 5, whole.begin() + 8));
  header.finish(whole.size());
  CHECK(at(header, whole.size() - 1, 1).front() == whole.back());
}

TEST_CASE("without room for what is decompressed, that is what is said", "[data]") {
  const TemporaryFolder folder;
  Content packed(folder.write("packed.gz", gzip(large())));
  const TemporaryPlace place("/nowhere/at/all");
  CHECK_THAT(
      message_of<OutputError>([&] { packed.finish(); }),
      Contains("packed.gz: cannot be decompressed into /nowhere/at/all") && Contains("set TMPDIR"));
}

}  // namespace
}  // namespace lockstep::test
