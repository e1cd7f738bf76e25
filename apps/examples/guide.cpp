// The guide to distributed input, in its order. Every number below is printed by rank 0.
//
//   guide --ranks 2, or mpirun -n 2 guide
#include <cstdio>
#include <lockstep/lockstep.hpp>
#include <optional>

using namespace lockstep;

namespace {

using Numbers = Tensor<std::int64_t>;

/// What rank 0 says. The others compute the same and are silent.
class Speaker {
 public:
  explicit Speaker(const Strategy& strategy) : speaks_(strategy.replica_id() == 0) {}
  void say(const std::string& text) const {
    if (speaks_) std::printf("%s\n", text.c_str());
  }

 private:
  bool speaks_;
};

/// A custom loop over batches that are cut for the replicas.
void batches(Strategy& strategy, const Speaker& speaker) {
  auto data = strategy.distribute_dataset(range(6).batch(4));
  speaker.say("range(6) in global batches of 4:");
  for (auto& batch : data) speaker.say("  " + strategy.describe(batch));
  if (!data.warning().empty()) speaker.say("  warning: " + data.warning());
  speaker.say("  element spec: " + to_text(data.element_spec().front()));
}

/// 100 ones in batches of 16: label - 0.3 * feature.
void nested_elements(Strategy& strategy, const Speaker& speaker) {
  const auto ones = from_elements(std::vector(1, std::pair(1.0F, 1.0F))).repeat(100);
  auto data = strategy.distribute_dataset(ones.batch(16));
  int steps = 0;
  std::size_t examples = 0;
  float least = 1;
  for (auto& batch : data) {
    const auto loss = strategy.run(
        [](const Tensor<float>& features, const Tensor<float>& labels) {
          auto result = labels;
          for (std::size_t i = 0; i < result.rows(); ++i) {
            result.values()[i] -= 0.3F * features.values()[i];
          }
          return result;
        },
        batch);
    const auto all = strategy.gather(loss, 0);
    for (const float value : all.values()) least = std::min(least, value);
    examples += all.rows();
    ++steps;
  }
  speaker.say("100 ones in batches of 16: " + std::to_string(steps) + " steps, " +
              std::to_string(examples) + " examples, label - 0.3 * feature = " + to_text(least));
}

/// An iterator anew for each epoch, and what is past its end.
void iterators(Strategy& strategy, const Speaker& speaker) {
  auto data = strategy.distribute_dataset(range(80).shuffle(22).batch(16));
  int steps = 0;
  for (int epoch = 0; epoch < 10; ++epoch) {
    auto iterator = data.make_iterator();
    for (int step = 0; step < 5; ++step, ++steps) iterator.next();
  }
  speaker.say("10 epochs of 5 steps: " + std::to_string(steps) + " steps");
  auto nine = strategy.distribute_dataset(range(9).batch(4));
  auto iterator = nine.make_iterator();
  steps = 0;
  while (iterator.next_as_optional()) ++steps;
  speaker.say("range(9) in batches of 4: " + std::to_string(steps) + " steps, then nothing");
  try {
    iterator.next();
  } catch (const OutOfRange& end) {
    speaker.say(std::string("  next(): ") + end.what());
  }
}

/// Each worker's data set, made by a function.
void from_a_function(Strategy& strategy, const Speaker& speaker) {
  auto data = strategy.distribute_datasets_from_function([](const InputContext& context) {
    return range(16)
        .shard(context.num_input_pipelines, context.input_pipeline_id)
        .batch(context.per_replica_batch_size(4 * context.num_replicas_in_sync))
        .prefetch(2);
  });
  speaker.say("from a function that shards range(16) itself:");
  for (auto& batch : data) speaker.say("  " + strategy.describe(batch));
}

/// An infinite generator of 4 floats.
void from_a_generator(Strategy& strategy, const Speaker& speaker) {
  const auto fours = from_generator<Tensor<float>>([] {
    return [i = 0]() mutable -> std::optional<Tensor<float>> {
      return Tensor<float>(std::vector<float>(4, static_cast<float>(i++)));
    };
  });
  auto data = strategy.distribute_dataset(fours.batch(4));
  auto iterator = data.make_iterator();
  speaker.say("four steps of an infinite generator:");
  for (int step = 0; step < 4; ++step) speaker.say("  " + strategy.describe(iterator.next()));
}

/// Values of replicas, and what opens them.
void values(Strategy& strategy, const Speaker& speaker) {
  auto data = strategy.distribute_dataset(from_elements<std::int64_t>({5, 6, 7, 8}).batch(2));
  const auto first = data.make_iterator().next();
  const auto plus_one = [](const Numbers& x) {
    return x.map([](std::int64_t value) { return value + 1; });
  };
  const auto total = strategy.reduce(ReduceOp::sum, first, 0);
  speaker.say("the first value of [5, 6, 7, 8]: " + strategy.describe(first));
  speaker.say("  x + 1: " + strategy.describe(strategy.run(plus_one, first)));
  speaker.say("  replica ids: " +
              strategy.describe(strategy.run([&] { return strategy.replica_id(); })));
  speaker.say("  reduce(sum, axis 0): " + to_text(total) + ", shape " + to_text(total.shape()));
  speaker.say("  gather(axis 0): " + to_text(strategy.gather(first, 0)));
  speaker.say("  local results of replica 0: " + to_text(strategy.local_results(first).front()));
  const auto ones =
      strategy.distribute_values_from_function([](const ValueContext&) { return 1.0; });
  speaker.say("  a constant 1.0 for each replica: " + strategy.describe(ones));
}

/// Weights that are the same everywhere, and a metric that each replica keeps for itself.
void variables(Strategy& strategy, const Speaker& speaker) {
  auto weight = strategy.create_variable(Tensor<float>{1, 2});
  weight.assign(weight.read().map([](float w) { return w / 2; }));
  weight.verify();
  auto examples = strategy.create_metric<std::int64_t>(ReduceOp::sum);
  auto data = strategy.distribute_dataset(range(24).batch(6));
  for (auto& batch : data) {
    strategy.run([&](const Numbers& x) { examples.add(static_cast<std::int64_t>(x.rows())); },
                 batch);
  }
  speaker.say("a mirrored variable: " + to_text(weight.read()) +
              ", verified; a metric: " + std::to_string(examples.read()) + " examples");
}

/// Outputs by the index that every element carries.
void global_order(Strategy& strategy, const Speaker& speaker) {
  const auto indexed = range(24).map([](std::int64_t i) { return std::pair(i, i); });
  auto data = strategy.distribute_dataset(indexed.shuffle(22).batch(6));
  std::map<std::int64_t, std::int64_t> outputs;
  for (auto& batch : data) {
    const auto indices = strategy.run([](const Numbers& i, const Numbers&) { return i; }, batch);
    const auto doubled = strategy.run(
        [](const Numbers&, const Numbers& x) {
          return x.map([](std::int64_t value) { return 2 * value; });
        },
        batch);
    outputs.merge(in_global_order(strategy, indices, doubled));
  }
  std::string text;
  for (const auto& [index, value] : outputs) {
    text += (text.empty() ? "" : ", ") + std::to_string(index) + ": " + std::to_string(value);
  }
  speaker.say("doubled, in global order: {" + text + "}");
}

void guide(comm::Communicator& comm) {
  Strategy strategy(comm);
  const Speaker speaker(strategy);
  speaker.say(std::to_string(strategy.num_replicas_in_sync()) + " replicas in sync");
  batches(strategy, speaker);
  nested_elements(strategy, speaker);
  iterators(strategy, speaker);
  from_a_function(strategy, speaker);
  from_a_generator(strategy, speaker);
  values(strategy, speaker);
  variables(strategy, speaker);
  global_order(strategy, speaker);
}

}  // namespace

int main(int argc, char** argv) { return run_replicas(argc, argv, guide); }
