#include "apps/fault_injection.hpp"

#include <catch2/catch.hpp>

#include "lockstep/base/errors.hpp"

#ifdef LOCKSTEP_FAULT_INJECTION

using namespace lockstep;
using namespace lockstep::apps;
using Catch::Matchers::Contains;

TEST_CASE("faults are parsed", "[faults]") {
  const auto faults = parse_faults(
      "kill:rank=1,step=7,phase=checkpoint;slow:step=3,rank=2,seconds=0.5,until=9;"
      "flip-weight:rank=0,step=1,weight=12,bit=31,times=always;flip-product:rank=0,step=4,row=5;"
      "nan:rank=3,step=2;stop:rank=0,step=6");
  REQUIRE(faults.size() == 6);
  CHECK(faults[0].kind == FaultKind::kill);
  CHECK(faults[0].rank == 1);
  CHECK(faults[0].step == 7);
  CHECK(faults[0].phase == Phase::checkpoint);
  CHECK(faults[1].kind == FaultKind::slow);
  CHECK(faults[1].seconds == 0.5);
  CHECK(faults[1].until == 9);
  CHECK(faults[2].kind == FaultKind::flip_weight);
  CHECK(faults[2].weight == 12);
  CHECK(faults[2].bit == 31);
  CHECK_FALSE(faults[2].times);
  CHECK(faults[3].kind == FaultKind::flip_product);
  CHECK(faults[3].row == 5);
  CHECK(faults[3].bit == 22);
  CHECK(faults[3].times == 1);
  CHECK(faults[4].kind == FaultKind::nan);
  CHECK(faults[5].kind == FaultKind::stop);
  CHECK(faults[5].phase == Phase::step);
}

TEST_CASE("faults that are not valid are refused", "[faults]") {
  const auto [text, reason] = GENERATE(table<const char*, const char*>(
      {{"", "not one of flip-product, flip-weight, kill, nan, slow, stop"},
       {"kil:rank=1,step=7", "LOCKSTEP_FAULT: kil: not one of"},
       {"kill", "not KEY=VALUE"},
       {"kill:rank=1", "step=N is needed, once"},
       {"kill:step=1", "rank=N is needed, once"},
       {"kill:rank=1,rank=2,step=1", "rank=N is needed, once"},
       {"kill:rank=1,step=0", "step=0"},
       {"kill:rank=-1,step=1", "rank=-1"},
       {"kill:rank=1,step=1,phase=lunch", "not one of checkpoint, data, evaluation, step"},
       {"kill:rank=1,step=1,seconds=1", "seconds=1: this fault has no such key"},
       {"slow:rank=1,step=1,phase=step", "phase=step: this fault has no such key"},
       {"slow:rank=1,step=1,seconds=x", "not a number of seconds"},
       {"slow:rank=1,step=1,seconds=-1", "not a number of seconds"},
       {"slow:rank=1,step=5,until=4", "until is before step"},
       {"flip-weight:rank=1,step=1,bit=32", "bit=32"},
       {"flip-product:rank=1,step=1,times=0", "times=0"},
       {"kill:rank=1,step=7;", "not one of"}}));
  CAPTURE(text);
  CHECK_THROWS_WITH(parse_faults(text), Contains(reason) && Contains("LOCKSTEP_FAULT: "));
  CHECK_THROWS_AS(parse_faults(text), ConfigError);
}

#endif
