// A plan as a table for the terminal: ranks down, steps across, records in the cells.
#pragma once

#include <cstdint>
#include <string>

#include "data/plan.hpp"

namespace lockstep::apps {

/// Who reads what in `epoch` (from 0), at most `columns` wide: the first ranks and steps that fit,
/// and always the last ones. Lines end with a newline.
std::string plan_picture(const data::Plan& plan, std::uint64_t epoch, std::size_t columns);

}  // namespace lockstep::apps
