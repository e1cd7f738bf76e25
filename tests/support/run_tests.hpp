// Catch2's implementation, compiled once for all test programs, whose main functions differ.
#pragma once

namespace lockstep::test {

/// Runs the tests that Catch2's command line selects. Returns the number of failed tests.
int run_tests(int argc, char** argv, bool colours = true);

}  // namespace lockstep::test
