#include "apps/table_texts.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::apps {

TableTexts::TableTexts(std::vector<std::filesystem::path> files, bool has_header, char separator)
    : files_(std::move(files)), has_header_(has_header), separator_(separator) {
  open();
  columns_ = texts_->names();
  std::vector<std::size_t> all(columns_.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  choose(std::move(all));
}

std::vector<std::string> TableTexts::chosen_names() const {
  std::vector<std::string> names;
  names.reserve(chosen_.size());
  for (const std::size_t column : chosen_) names.push_back(columns_[column]);
  return names;
}

const std::vector<std::string>* TableTexts::next() {
  const auto* record = &texts_->next();
  while (record->empty() && file_ < files_.size()) {
    open();
    find_columns();
    record = &texts_->next();
  }
  if (record->empty()) return nullptr;
  fields_.clear();
  for (const std::size_t position : positions_) fields_.push_back((*record)[position]);
  return &fields_;
}

void TableTexts::open() {
  texts_ = std::make_unique<data::CsvTexts>(files_[file_++], has_header_, separator_);
}

/// Finds the chosen columns in the open file.
void TableTexts::find_columns() {
  const auto& there = texts_->names();
  positions_ = chosen_;
  if (there == columns_) return;
  const std::vector<std::string> names = chosen_names();
  const std::string place = files_[file_ - 1].string() + ":1";
  data::require_unique(there, names, place);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto at = index_of(there, names[i]);
    if (!at) {
      throw DataError(place + ": no column is named " + in_quotes(names[i]),
                      "give all files the same columns");
    }
    positions_[i] = *at;
  }
}

}  // namespace lockstep::apps
