// Damaged files by the hundred, for every format: refused with file and place, or harmless.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <random>

#include "lockstep/base/errors.hpp"
#include "lockstep/data/folder.hpp"
#include "lockstep/data/writer.hpp"
#include "tests/support/peak_memory.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/unit/data/idx_bytes.hpp"

namespace lockstep::test {
namespace {

using data::Format;

constexpr std::uint64_t records = 6;

std::int32_t record_of(std::uint64_t index, std::span<float> features, bool numbers) {
  for (std::size_t p = 0; p < features.size(); ++p) {
    const auto byte = static_cast<float>((37 * index + 11 * p) % 256);
    features[p] = numbers ? byte / 7.0F : byte;
  }
  return static_cast<std::int32_t>(index % 10);
}

/// A small data set of one format, of which one file at a time is damaged.
struct Victim {
  Victim(Format what, bool numbers) : format(what) {
    const data::RecordShape shape{
        records, {3, 4}, numbers ? data::Element::number : data::Element::byte};
    write_records({folder.path(), "train", format, 1}, shape,
                  [&](std::uint64_t index, std::span<float> features) {
                    return record_of(index, features, numbers);
                  });
    files = data::files_of({folder.path(), "train", format, 1}).front();
  }

  /// Opens and reads everything. What is accepted is counted, and must be finite and in range.
  void attempt(const std::string& what) {
    INFO(what);
    ++tried;
    try {
      const auto source = data::open_files(format, files, {});
      if (source->records() > 4096 || source->features() > 4096) {
        FAIL_CHECK("more records or features than so small a file holds");
        return;
      }
      const auto got = read_all(*source);
      CHECK(std::all_of(got.x.begin(), got.x.end(), [](float v) { return std::isfinite(v); }));
      CHECK(std::all_of(got.labels.begin(), got.labels.end(),
                        [](int v) { return v >= 0 && v < 10; }));
    } catch (const DataError& error) {
      ++refused;
      const std::string message = error.what();
      CHECK(message.starts_with(folder.path().string() + "/train"));
      const bool by_byte = message.find(": byte ") != message.npos;
      const bool by_line = message.find(".csv:") != message.npos;
      const bool is_empty = message.find(": is empty") != message.npos;
      CHECK((by_byte || by_line || is_empty));
    }
  }

  TemporaryFolder folder;
  Format format;
  data::RecordFiles files;
  std::size_t tried = 0;
  std::size_t refused = 0;
};

void damage(Victim& victim, const std::filesystem::path& path) {
  const Bytes good = read_bytes(path);
  const std::string name = path.filename().string();
  const auto attempt = [&](const Bytes& bad, const std::string& what) {
    if (bad == good) return;
    victim.folder.write(name, bad);
    victim.attempt(name + " " + what);
  };
  for (std::size_t size = 0; size < good.size(); ++size) {
    attempt({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)},
            "cut to " + std::to_string(size));
  }
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const unsigned value : {0x00U, 0xFFU, good[at] ^ 0x01U, good[at] ^ 0x80U}) {
      Bytes bad = good;
      bad[at] = static_cast<std::uint8_t>(value);
      attempt(bad, "with " + std::to_string(value) + " at " + std::to_string(at));
    }
  }
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {  // pieces cut out, doubled or overwritten
    Bytes bad = good;
    const auto at = static_cast<std::ptrdiff_t>(random() % bad.size());
    const auto size = std::min<std::ptrdiff_t>(1 + static_cast<std::ptrdiff_t>(random() % 16),
                                               static_cast<std::ptrdiff_t>(bad.size()) - at);
    const Bytes piece(bad.begin() + at, bad.begin() + at + size);
    if (round % 3 == 0) bad.erase(bad.begin() + at, bad.begin() + at + size);
    if (round % 3 == 1) bad.insert(bad.begin() + at, piece.begin(), piece.end());
    if (round % 3 == 2)
      std::generate_n(bad.begin() + at, size, [&] { return static_cast<std::uint8_t>(random()); });
    attempt(bad, "in round " + std::to_string(round));
  }
  victim.folder.write(name, good);
}

TEST_CASE("hundreds of damaged files of every format are refused or harmless", "[data]") {
  const Format format = GENERATE(Format::idx, Format::csv, Format::npy, Format::tfrecord);
  const bool numbers = GENERATE(false, true);
  if (format == Format::idx && numbers) return;
  const long before = peak_kilobytes();
  Victim victim(format, numbers);
  damage(victim, victim.files.records);
  if (data::is_paired(format)) damage(victim, victim.files.labels);
  CHECK(victim.tried > 500);
  CHECK(victim.refused > victim.tried / 5);
  if (format == Format::tfrecord) {  // all is under a checksum; a cut between records is none
    CHECK(victim.refused + records > victim.tried);
  }
  CHECK(peak_kilobytes() - before < 400'000L);  // AddressSanitizer keeps 256 MB of what was freed
}

TEST_CASE("every flipped bit of a compressed file is found or harmless", "[data]") {
  const Format format = GENERATE(Format::csv, Format::npy, Format::tfrecord);
  Victim victim(format, false);
  const std::string name = std::filesystem::path(victim.files.records).filename().string();
  const Bytes good = gzip(read_bytes(victim.files.records));
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    bad[bit / 8] = static_cast<std::uint8_t>(bad[bit / 8] ^ 1U << bit % 8);
    victim.folder.write(name, bad);
    victim.attempt("bit " + std::to_string(bit));
  }
  CHECK(victim.refused + 100 >= victim.tried);  // gzip's time and system may change
}

}  // namespace
}  // namespace lockstep::test
