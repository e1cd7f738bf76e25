#include "lockstep/data/file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

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
  Bytes with_zeros = gzip(whole);
  with_zeros.resize(with_zeros.size() + 512);
  Content padded(folder.write("padded.gz", with_zeros));
  padded.finish();
  CHECK(padded.size() == whole.size());
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

TEST_CASE("mapped content is that of the file, and one that has shrunk is bad data", "[data]") {
  const TemporaryFolder folder;
  const Bytes whole = large();
  const auto path = folder.write("plain", whole);
  Content plain(path);
  Content mapped(path);
  Content packed(folder.write("packed.gz", gzip(whole)));
  packed.finish();
  packed.map();
  mapped.map();
  mapped.check_mapped();
  const std::uint64_t edge = Content::max_in_memory;
  for (const std::uint64_t offset :
       {std::uint64_t{0}, edge - 50, edge, 2 * edge - 50, whole.size() - 100}) {
    CHECK(at(packed, offset, 100) == at(plain, offset, 100));
    CHECK(at(mapped, offset, 100) == at(plain, offset, 100));
  }
  CHECK_THROWS_AS(at(packed, whole.size() - 99, 100), DataError);
  CHECK_THROWS_AS(at(mapped, whole.size() - 99, 100), DataError);

  // Within a page the missing bytes are zeros, beyond it there is no page.
  std::filesystem::resize_file(path, edge + 20);
  const std::string end = path.string() + ": byte " + std::to_string(edge + 20);
  CHECK(at(mapped, edge, 100) != at(packed, edge, 100));
  CHECK_THAT(message_of<DataError>([&] { mapped.check_mapped(); }), StartsWith(end));
  CHECK_THAT(message_of<DataError>([&] { at(mapped, 2 * edge, 100); }), Contains("the file ends"));
  CHECK_THAT(message_of<DataError>([&] { at(mapped, edge, 100); }), StartsWith(end));
  CHECK(at(mapped, edge, 20) == at(packed, edge, 20));
}

TEST_CASE("an access to memory that no read has caused ends the process as before", "[data]") {
  const TemporaryFolder folder;
  const auto path = folder.write("plain", large());
  Content(path).map();  // installs the handler
  const pid_t child = ::fork();
  if (child == 0) {
    const int file = ::open(path.c_str(), O_RDWR);
    void* const memory = ::mmap(nullptr, 8192, PROT_READ, MAP_SHARED, file, 0);
    if (::ftruncate(file, 0) == 0) static_cast<void>(*static_cast<volatile char*>(memory));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
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

TEST_CASE("compressed content is decompressed as far as it is asked for", "[data]") {
  const TemporaryFolder folder;
  const Bytes whole = large();
  const Bytes compressed = gzip(whole);
  const auto path = folder.write("packed.gz", compressed);
  Content packed(path);
  {
    const TemporaryPlace place("/nowhere/at/all");  // beyond what is kept in memory it fails
    CHECK(packed.available(10) == 10);
    CHECK(packed.available(Content::max_in_memory) == Content::max_in_memory);
    CHECK(at(packed, 5, 3) == Bytes(whole.begin() + 5, whole.begin() + 8));
  }
  CHECK(packed.available(whole.size() + 1) == whole.size());
  CHECK(packed.available(Content::all) == whole.size());
  CHECK(at(packed, whole.size() - 1, 1).front() == whole.back());
  CHECK_THAT(message_of<DataError>([&] { at(packed, whole.size() - 1, 2); }),
             StartsWith(path.string() + ": byte ") && Contains("ends too early"));
  packed.finish();
  CHECK(packed.available(Content::all) == whole.size());
  Content plain(folder.write("plain", whole));
  CHECK(plain.available(10) == 10);
  CHECK(plain.available(Content::all) == whole.size());
  Content cut(folder.write("cut.gz", std::span(compressed).first(1000)));
  CHECK_THAT(message_of<DataError>([&] { cut.available(Content::all); }),
             Contains("the gzip stream ends too early"));
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
