// An assertion for tests whose ranks are processes.
#pragma once

#include <catch2/catch.hpp>

/// Fails on all ranks as soon as it fails on one, so no rank is left waiting. Collective.
#define REQUIRE_ON_ALL(comm, ...)    \
  do {                               \
    const bool here = (__VA_ARGS__); \
    CHECK(here);                     \
    REQUIRE((comm).all_agree(here)); \
  } while (false)
