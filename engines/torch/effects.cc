#include "effects.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/ir/alias_analysis.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/ir/ir.h>
#include <torch/csrc/jit/passes/constant_propagation.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>
#include <torch/csrc/jit/passes/inliner.h>

namespace {

using millpond::Effects;
using torch::jit::AliasDb;
using torch::jit::Block;
using torch::jit::Graph;
using torch::jit::Node;
using torch::jit::Value;

void each_node(Block *block, const std::function<void(Node *)> &act) {
  for (Node *node : block->nodes()) {
    act(node);
    for (Block *inner : node->blocks()) {
      each_node(inner, act);
    }
  }
}

// Nodes whose code runs in parallel (`torch.jit.fork`) or on demand (an awaitable).
bool runs_apart(const Node *node) {
  return node->kind() == c10::prim::fork || node->kind() == c10::prim::awaitable;
}

bool is_wait(const Node *node) {
  return node->kind() == c10::aten::wait || node->kind() == c10::prim::awaitable_wait;
}

// Inserts a copy of the body of `node` before it, since no analysis reads the attribute that holds the body. Returns
// true if `node` still exists.
bool unfold(Graph &graph, Node *node) {
  torch::jit::WithInsertPoint here(node);
  const auto results = torch::jit::insertGraph(graph, *node->g(c10::attr::Subgraph), node->inputs());
  const auto uses = node->output()->uses();
  const bool plain = results.size() == 1 &&
                     std::all_of(uses.begin(), uses.end(), [](const auto &use) { return is_wait(use.user); });
  if (!plain) {
    // The future is stored, and this analysis cannot follow where it is awaited. So any wait may return and write
    // to the inputs and results of a fork.
    for (Value *result : results) {
      node->addInput(result);
    }
    return true;
  }
  for (const auto &use : uses) {
    use.user->output()->replaceAllUsesWith(results[0]);
    use.user->destroy();
  }
  node->destroy();
  return false;
}

bool hides_its_body(const Node *node) { return node->hasAttribute(c10::attr::Subgraph) && !runs_apart(node); }

// Inlines all calls of `graph`. Returns true if some of them are forked.
bool flatten(Graph &graph) {
  bool forked = false;
  std::unordered_set<const Node *> kept;
  for (;;) {
    torch::jit::Inline(graph);
    std::vector<Node *> apart;
    each_node(graph.block(), [&](Node *node) {
      forked = forked || node->kind() == c10::prim::fork;
      if (runs_apart(node) && kept.count(node) == 0) {
        apart.push_back(node);
      }
    });
    if (apart.empty()) {
      return forked;
    }
    for (Node *node : apart) {
      if (unfold(graph, node)) {
        kept.insert(node);
      }
    }
  }
}

bool is_module(const Value *value) {
  const auto type = value->type()->cast<c10::ClassType>();
  return type && type->is_module();
}

// Sets `self.training` of modules to false, as a load does, and removes the code it guards: a normalisation layer
// counts its batches in training only. An object of another class keeps its flag, and so does a module that sets its
// own.
void evaluate(std::shared_ptr<Graph> &graph) {
  std::vector<Node *> flags;
  bool sets_flag = false;
  each_node(graph->block(), [&](Node *node) {
    const bool reads = node->kind() == c10::prim::GetAttr;
    const bool sets = node->kind() == c10::prim::SetAttr;
    if ((!reads && !sets) || node->s(c10::attr::name) != "training") {
      return;
    }
    sets_flag = sets_flag || sets;
    if (reads && is_module(node->input()) && node->output()->type()->kind() == c10::TypeKind::BoolType) {
      flags.push_back(node);
    }
  });
  if (sets_flag) {
    return;
  }
  for (Node *node : flags) {
    torch::jit::WithInsertPoint here(node);
    node->output()->replaceAllUsesWith(graph->insertConstant(false));
  }
  torch::jit::ConstantPropagationImmutableTypes(graph);
  torch::jit::EliminateDeadCode(graph);
}

// Normalisation in training mode updates its statistics, although its declaration does not say so.
bool updates_statistics(Node *node) {
  static const std::vector<std::pair<const char *, const char *>> kinds = {
      {"aten::batch_norm", "training"},
      {"aten::native_batch_norm", "training"},
      {"aten::_batch_norm_impl_index", "training"},
      {"aten::instance_norm", "use_input_stats"},
  };
  for (const auto &[kind, flag] : kinds) {
    if (node->kind() == c10::Symbol::fromQualString(kind)) {
      const auto mode = torch::jit::constant_as<bool>(node->namedInput(flag));
      const bool kept = node->namedInput("running_mean")->type()->kind() != c10::TypeKind::NoneType;
      return kept && mode.value_or(true);
    }
  }
  return false;
}

// Returns the tensor that `node` may return as its result, although its declaration does not say so: a dropout does in
// evaluation, a conversion if the type is the same already.
Value *returned_input(Node *node) {
  static const std::unordered_set<std::string> kinds = {
      "aten::dropout",       "aten::alpha_dropout", "aten::feature_dropout", "aten::feature_alpha_dropout",
      "aten::type_as",       "aten::_cast_Byte",    "aten::_cast_Char",      "aten::_cast_Double",
      "aten::_cast_Float",   "aten::_cast_Half",    "aten::_cast_Int",       "aten::_cast_Long",
      "aten::_cast_Short",   "aten::atleast_1d",    "aten::atleast_2d",      "aten::atleast_3d",
      "aten::sum_to_size",   "aten::einsum",        "aten::cartesian_prod",  "aten::to_dense",
      "aten::conj_physical", "aten::data",          "aten::dequantize",
  };
  const auto is_tensor = [](const Value *value) { return value->type()->kind() == c10::TypeKind::TensorType; };
  if (kinds.count(node->kind().toQualString()) == 0 || node->outputs().size() != 1 || !is_tensor(node->output())) {
    return nullptr;
  }
  for (Value *input : node->inputs()) {
    // An operation on a list of tensors may return the only one.
    Node *from = input->node();
    const bool alone = from->kind() == c10::prim::ListConstruct && from->inputs().size() == 1;
    Value *tensor = alone ? from->inputs()[0] : input;
    if (is_tensor(tensor)) {
      return tensor;
    }
  }
  return nullptr;
}

// Returns true if `node` returns a list of tensors that may be views of its inputs, although its declaration does not
// say so.
bool returns_views(const Node *node) {
  static const std::unordered_set<std::string> kinds = {
      "aten::broadcast_tensors",
      "aten::unsafe_chunk",
      "aten::unsafe_split",
      "aten::unsafe_split_with_sizes",
  };
  return kinds.count(node->kind().toQualString()) > 0;
}

// Replaces results that may be an input by that input, so that a write to the result counts as one to the input. Only
// the analysis sees this graph, so a list may have another length.
void join_returned(Graph &graph) {
  each_node(graph.block(), [&](Node *node) {
    if (Value *input = returned_input(node)) {
      node->output()->replaceAllUsesWith(input);
    } else if (returns_views(node)) {
      Value *list = node->inputs().at(0);
      if (list->type()->kind() == c10::TypeKind::TensorType) {
        list = graph.createList(c10::TensorType::get(), {list})->insertBefore(node)->output();
      }
      node->output()->replaceAllUsesWith(list);
    }
  });
}

// Returns the attribute names from the module to the value that `node` reads.
bool path_of(const Graph &graph, const Node *node, std::vector<std::string> &path) {
  path.push_back(node->s(c10::attr::name));
  for (const Value *from = node->input(); from != graph.inputs().at(0); from = from->node()->input()) {
    if (from->node()->kind() != c10::prim::GetAttr) {
      return false;
    }
    path.push_back(from->node()->s(c10::attr::name));
  }
  std::reverse(path.begin(), path.end());
  return true;
}

bool holds_tensors_inside(const c10::TypePtr &type) {
  switch (type->kind()) {
    case c10::TypeKind::ListType:
    case c10::TypeKind::DictType:
    case c10::TypeKind::TupleType:
      return true;
    case c10::TypeKind::OptionalType:
      return holds_tensors_inside(type->containedType(0));
    default:
      return false;
  }
}

// Written memory of a graph.
class Writes {
 public:
  // Attributes count as separate objects, so a write to an input does not count as a write to every attribute.
  explicit Writes(const std::shared_ptr<Graph> &graph) : aliases_(graph, /*isFrozen=*/true) {
    std::vector<std::pair<Value *, Value *>> carried;
    std::vector<Node *> reads;
    std::vector<Node *> sets;
    each_node(graph->block(), [&](Node *node) {
      for (Value *value : node->outputs()) {
        if (aliases_.hasWriters(value)) {
          written_.push_back(value);
        }
      }
      if (node->kind() == c10::prim::Loop) {
        Block *body = node->blocks().at(0);
        for (size_t i = 1; i < body->inputs().size(); i++) {
          carried.emplace_back(body->inputs()[i], body->outputs()[i]);
        }
      } else if (node->kind() == c10::prim::GetAttr) {
        reads.push_back(node);
      } else if (node->kind() == c10::prim::SetAttr) {
        sets.push_back(node);
      }
    });
    follow(std::move(carried));
    // A value that is set may alias each element of a container. So values of attributes that no node writes to are
    // left out. Otherwise each fork would copy the weights that the graph puts into a list.
    for (Node *set : sets) {
      const auto is_written = [&](Node *read) {
        return read->s(c10::attr::name) == set->s(c10::attr::name) && reach_any(read->output());
      };
      if (std::any_of(reads.begin(), reads.end(), is_written)) {
        kept_.push_back(set->inputs().at(1));
      }
    }
  }

  // Returns true if some node may write to `value`.
  bool reach(Value *value) const {
    const auto may_be = [&](const Value *later) { return aliases_.mayAlias(value, later); };
    return aliases_.hasWriters(value) || std::any_of(later_.begin(), later_.end(), may_be);
  }

  // Returns true if some node may write to an element of `container`, which `AliasDb::hasWriters` does not count.
  bool reach_inside(Value *container) const { return may_hold(container, written_) || may_hold(container, later_); }

  // Returns true if some node may write to `value` or to an element of it.
  bool reach_any(Value *value) const {
    return reach(value) || (holds_tensors_inside(value->type()) && reach_inside(value));
  }

  // Returns true if `value` may become another attribute that some node may write to. The analysis counts that
  // attribute as a separate object.
  bool keep(Value *value) const { return may_hold(value, kept_); }

 private:
  bool may_hold(Value *container, const std::vector<Value *> &values) const {
    return std::any_of(values.begin(), values.end(),
                       [&](Value *value) { return aliases_.mayContainAlias(container, value); });
  }

  // Finds the values that a round of a loop writes to because the round before passed them on. `AliasDb` analyses one
  // round only. Each pair has a variable at the start and at the end of a round.
  void follow(std::vector<std::pair<Value *, Value *>> carried) {
    for (bool found = true; found;) {
      found = false;
      for (auto pair = carried.begin(); pair != carried.end();) {
        if (reach(pair->first) || reach(pair->second)) {
          later_.push_back(pair->second);
          pair = carried.erase(pair);
          found = true;
        } else {
          ++pair;
        }
      }
    }
  }

  const AliasDb aliases_;
  std::vector<Value *> written_;
  std::vector<Value *> later_;
  std::vector<Value *> kept_;
};

} // namespace

namespace millpond {

Effects effects_of(const torch::jit::Module &module) {
  auto graph = torch::jit::toGraphFunction(module.get_method("forward").function()).graph()->copy();
  Effects effects;
  effects.threads = flatten(*graph);
  join_returned(*graph);
  evaluate(graph);

  std::vector<Node *> reads;
  std::vector<Node *> constants;
  each_node(graph->block(), [&](Node *node) {
    const auto kind = node->kind();
    if (kind == c10::prim::SetAttr) {
      effects.stateful = true;
    } else if (kind == c10::prim::CallMethod || hides_its_body(node) || updates_statistics(node)) {
      // A call through an interface: its target is known only at run time.
      effects.stateful = effects.written_unknown = true;
      effects.threads = effects.threads || kind == c10::prim::CallMethod;
    } else if (kind == c10::prim::GetAttr) {
      // The attributes of an object are read one by one.
      if (node->output()->type()->kind() != c10::TypeKind::ClassType) {
        reads.push_back(node);
      }
    } else if (kind == c10::prim::Constant && node->output()->type()->kind() == c10::TypeKind::TensorType) {
      constants.push_back(node);
    }
  });
  const Writes writes(graph);
  for (Node *node : reads) {
    Value *value = node->output();
    const bool container = holds_tensors_inside(value->type());
    if (!writes.reach_any(value) && !writes.keep(value)) {
      continue;
    }
    effects.stateful = true;
    std::vector<std::string> path;
    const bool named = (container || value->type()->kind() == c10::TypeKind::TensorType) && path_of(*graph, node, path);
    if (named) {
      effects.written.push_back(std::move(path));
    } else {
      effects.written_unknown = true;
    }
  }
  // The memory of a module without a state is sealed against writes, and with it the constants of the graph. Forks
  // share constants, so a write to one cannot count as a state: requests would see each other's writes.
  for (Node *node : constants) {
    TORCH_CHECK(!writes.reach(node->output()),
                "forward writes to a tensor that is a constant of its graph: register the tensor as a buffer of the "
                "module, and save it again");
  }
  const auto inputs = graph->inputs().slice(1);
  effects.writes_inputs =
      std::any_of(inputs.begin(), inputs.end(), [&](Value *input) { return writes.reach(input); });
  return effects;
}

} // namespace millpond
