// Saves variables over a mesh in a file, and restores them under any mesh and layout.
//
// The file is a safetensors file of whole F32 tensors, by name, without optimizer or settings:
// libraries of other languages read it as it is. Its header has the XXH3 of the values of each.
#pragma once

#include <span>
#include <string>

#include "lockstep/distribute/dtensor.hpp"

namespace lockstep::train {

/// Writes the variables, at least one, to a new file, or in place of one of that name. Each is
/// gathered in turn, for its checksum and to be written, so a rank holds one whole variable at a
/// time; rank 0 writes.
///
///   save_variables("weights.safetensors", weights);  // a std::vector<DVariable<float>>
///
/// Errors   throws the same comm::AgreedError on all ranks: (2) for no variables, two of one name,
///          a name that a file cannot have, or ranks with different variables; (74) if the file
///          cannot be written: a file of that name then stays as it was.
/// Ranks    collective; all variables are on one mesh.
void save_variables(const std::string& path, std::span<const DVariable<float>> variables);

/// Assigns to each variable the tensor of its name. The file must have exactly these names and
/// shapes; layouts, mesh and ranks may be others than when it was saved. Every rank reads it, and
/// compares checksums if the file has them. It holds all values twice until all are known good.
///
/// Errors   throws the same comm::AgreedError on all ranks: (2) as above; (65) for a file that is
///          missing, damaged or of other variables; (70) if ranks read different values. The
///          variables are then unchanged.
/// Ranks    collective.
void restore_variables(const std::string& path, std::span<DVariable<float>> variables);

}  // namespace lockstep::train
