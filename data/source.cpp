#include "data/source.hpp"

#include "data/folder.hpp"
#include "data/synthetic.hpp"

namespace lockstep::data {

DataSet open_data_set(const std::string& path, const DataSetOptions& options) {
  if (path != "synthetic") return open_folder(path, options);
  const ReadOptions train{options.train_limit, options.divide_by, options.classes};
  const ReadOptions test{options.test_limit, options.divide_by, options.classes};
  DataSet set;
  set.train = std::make_unique<SyntheticSource>(SyntheticPart::train, train);
  set.test = std::make_unique<SyntheticSource>(SyntheticPart::test, test);
  return set;
}

}  // namespace lockstep::data
