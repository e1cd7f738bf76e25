#include "apps/plan_picture.hpp"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <vector>

#include "lib/base/text.hpp"

namespace lockstep::apps {
namespace {

constexpr std::uint64_t most_rows = 16;
constexpr std::uint64_t most_steps = 24;
constexpr const char* gap = "...";

/// The first indices below `count`, and the last: at most `most`.
std::vector<std::uint64_t> shown(std::uint64_t count, std::uint64_t most) {
  std::vector<std::uint64_t> indices;
  for (std::uint64_t i = 0; i < count && indices.size() + 1 < most; ++i) indices.push_back(i);
  if (indices.size() < count) indices.push_back(count - 1);
  return indices;
}

/// "0-15" where records follow each other; else the first ones, "7 3 5" or "7 3 +14".
std::string cell(const data::Plan& plan, std::uint64_t epoch, std::uint64_t step,
                 std::uint64_t rank) {
  const Range range = plan.positions(step, rank);
  const std::uint64_t size = range.size();
  if (size == 0) return "-";
  const auto record = [&](std::uint64_t i) { return plan.record(epoch, rank, range.begin + i); };
  const bool ordered = plan.options().shuffle == data::Shuffle::none;
  if (size == 1) return std::to_string(record(0));
  if (ordered && record(size - 1) - record(0) == size - 1) {
    return fmt::format("{}-{}", record(0), record(size - 1));
  }
  const std::uint64_t listed = size <= 3 ? size : 2;
  std::string text;
  for (std::uint64_t i = 0; i < listed; ++i) text += fmt::format("{}{}", i ? " " : "", record(i));
  return listed < size ? text + fmt::format(" +{}", size - listed) : text;
}

using Column = std::vector<std::string>;

std::size_t width_of(const Column& column) {
  std::size_t width = 0;
  for (const auto& text : column) width = std::max(width, text.size());
  return width;
}

Column step_column(const data::Plan& plan, std::uint64_t epoch, std::uint64_t step,
                   const std::vector<std::uint64_t>& ranks) {
  Column column = {fmt::format("step {}", step + 1)};
  for (const auto rank : ranks) column.push_back(cell(plan, epoch, step, rank));
  return column;
}

/// The steps that fit behind the first columns; a gap before the last where some are left out.
std::vector<Column> step_columns(const data::Plan& plan, std::uint64_t epoch,
                                 const std::vector<std::uint64_t>& ranks, std::size_t room) {
  const auto steps = shown(plan.steps(), most_steps);
  Column last = step_column(plan, epoch, steps.back(), ranks);
  std::vector<Column> columns;
  const std::size_t reserved = width_of(last) + 2 + std::string(gap).size() + 2;
  std::size_t used = reserved;
  std::uint64_t next = 0;
  for (; next + 1 < steps.size(); ++next) {
    Column column = step_column(plan, epoch, steps[next], ranks);
    used += width_of(column) + 2;
    if (used > room && !columns.empty()) break;
    columns.push_back(std::move(column));
  }
  if (next + 1 < plan.steps()) columns.emplace_back(ranks.size() + 1, gap);
  columns.push_back(std::move(last));
  return columns;
}

}  // namespace

std::string plan_picture(const data::Plan& plan, std::uint64_t epoch, std::size_t columns) {
  const auto ranks = shown(plan.options().ranks, most_rows);
  Column names = {fmt::format("epoch {}", epoch + 1)};
  Column counts = {"records"};
  for (const auto rank : ranks) {
    names.push_back(fmt::format("rank {}", rank));
    counts.push_back(grouped(plan.examples_of(rank)));
  }
  const std::size_t taken = width_of(names) + width_of(counts) + 4;
  auto steps = step_columns(plan, epoch, ranks, columns > taken ? columns - taken : 0);
  steps.insert(steps.begin(), {names, counts});
  std::string text;
  for (std::size_t row = 0; row <= ranks.size(); ++row) {
    const bool jump = row > 1 && ranks[row - 1] != ranks[row - 2] + 1;
    if (jump) text += std::string(2, ' ') + gap + "\n";
    std::string line;
    for (std::size_t c = 0; c < steps.size(); ++c) {
      line += fmt::format("  {:<{}}", steps[c][row], width_of(steps[c]));
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace lockstep::apps
