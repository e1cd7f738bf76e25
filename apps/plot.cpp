// `lockstep plot`: loss and score of runs against epochs, as a figure.
#include "lockstep/train/plot.hpp"

#include <spdlog/fmt/fmt.h>

#include "apps/cli.hpp"
#include "apps/subcommands.hpp"
#include "lockstep/base/errors.hpp"
#include "lockstep/base/text.hpp"

namespace lockstep::apps {

Syntax plot_syntax() {
  Syntax syntax;
  syntax.command = "lockstep plot";
  syntax.does =
      "Draws loss and accuracy (of a regression R2) of runs against epochs, for training and test "
      "set. A run may still be trained. A figure has at most 7 runs.\n";
  syntax.usage = "RUN... [--output FILE.svg|FILE.png]";
  syntax.operand = "run folder";
  syntax.operands = 7;
  syntax.flags = {{"output", "FILE", "write this file, *.svg or *.png", "history.svg"}};
  syntax.example = "lockstep plot runs/latest --output history.png";
  return syntax;
}

int plot_command(const std::vector<std::string>& words) {
  return run_on_rank_0(plot_syntax(), words, [](const Arguments& arguments) {
    if (arguments.operands.empty()) {
      throw ConfigError("no run folder is given", "`lockstep plot RUN` draws a run's epochs");
    }
    std::vector<train::History> histories;
    histories.reserve(arguments.operands.size());
    for (const std::string& folder : arguments.operands) {
      const auto name = is_utf8(folder) ? presentable(folder) : printable(folder, folder.size());
      histories.push_back({name, train::read_epochs(folder)});
    }
    const std::string file = arguments.value("output");
    train::plot(histories, file);
    fmt::print("{} written: {}\n", presentable(file),
               histories.size() == 1 ? counted(histories[0].epochs.size(), "epoch")
                                     : counted(histories.size(), "run"));
    return static_cast<int>(ExitCode::success);
  });
}

}  // namespace lockstep::apps
