/*
 * The C++ side of chat_shim.h.  Each function catches what llama.cpp throws and makes an is_error of it.
 */
#include "chat_shim.h"

#include <chat-auto-parser.h>
#include <chat.h>
#include <json-schema-to-grammar.h>
#include <log.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

struct is_chat {
    std::unique_ptr<common_chat_template> plain;
    common_chat_templates_ptr all;
    bool add_bos = false;
    bool tools = false;
    const llama_vocab *vocab = nullptr;
};

namespace
{

void be_quiet()
{
    static std::once_flag once;
    std::call_once(once, [] { common_log_set_verbosity_thold(-1); });
}

is_status fail(is_error *err, is_status status, const char *text)
{
    if (err != nullptr) {
        err->status = status;
        (void)std::snprintf(err->text, sizeof err->text, "%s", text);
        for (char *at = err->text; *at != '\0'; at++)
            if (*at == '\n') *at = ' '; /* an error is one line */
    }
    return status;
}

/* Runs `work`; what it throws becomes an error with this status. */
template <typename Work> is_status guard(is_error *err, is_status status, Work work) noexcept
{
    try {
        be_quiet();
        work();
        return IS_OK;
    } catch (const std::bad_alloc &) {
        return fail(err, IS_ENOMEM, "no memory for llama.cpp's chat functions");
    } catch (const std::exception &e) {
        return fail(err, status, e.what());
    } catch (...) {
        return fail(err, status, "llama.cpp failed for a reason that it does not give");
    }
}

char *copy(const std::string &text)
{
    char *out = static_cast<char *>(std::malloc(text.size() + 1));
    if (out == nullptr) throw std::bad_alloc();
    std::memcpy(out, text.c_str(), text.size() + 1);
    return out;
}

std::vector<common_chat_msg> messages_of(const is_chat_message *messages, size_t n)
{
    std::vector<common_chat_msg> out;
    for (size_t i = 0; i < n; i++) {
        const is_chat_message &from = messages[i];
        common_chat_msg message;
        message.role = from.role;
        message.content = from.content;
        if (from.tool_call_id != nullptr) message.tool_call_id = from.tool_call_id;
        if (from.tool_name != nullptr) message.tool_name = from.tool_name;
        if (from.tool_calls != nullptr)
            for (const auto &call : common_json::parse(from.tool_calls)) {
                const auto &function = call.at("function");
                common_chat_tool_call to;
                to.name = function.at("name").get<std::string>();
                to.arguments = function.at("arguments").get<std::string>();
                to.id = call.value("id", "");
                message.tool_calls.push_back(to);
            }
        out.push_back(message);
    }
    return out;
}

std::string text_of_token(const llama_vocab *vocab, llama_token token)
{
    return token == LLAMA_TOKEN_NULL ? std::string() : common_token_to_piece(vocab, token, true);
}

/* The token that this text is, alone; LLAMA_TOKEN_NULL: it is none, or several. */
llama_token single_token(const llama_vocab *vocab, const std::string &text)
{
    if (vocab == nullptr) return LLAMA_TOKEN_NULL;
    const auto tokens = common_tokenize(vocab, text, false, true);
    return tokens.size() == 1 ? tokens[0] : LLAMA_TOKEN_NULL;
}

/* What starts a lazy grammar: tokens, and patterns as llama_sampler_init_grammar_lazy_patterns takes them. */
void add_triggers(const is_chat &chat, const common_chat_params &params, common_json &format)
{
    auto patterns = common_json::array();
    auto tokens = common_json::array();
    for (const auto &trigger : params.grammar_triggers) {
        switch (trigger.type) {
        case COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN: tokens.push_back(trigger.token); break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_WORD: {
            llama_token token = single_token(chat.vocab, trigger.value);
            if (token != LLAMA_TOKEN_NULL)
                tokens.push_back(token);
            else
                patterns.push_back(regex_escape(trigger.value));
            break;
        }
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN: patterns.push_back(trigger.value); break;
        case COMMON_GRAMMAR_TRIGGER_TYPE_PATTERN_FULL: {
            std::string pattern = trigger.value;
            if (pattern.empty() || pattern.front() != '^') pattern.insert(pattern.begin(), '^');
            if (pattern.back() != '$') pattern.push_back('$');
            patterns.push_back(pattern);
            break;
        }
        }
    }
    format["patterns"] = patterns;
    format["tokens"] = tokens;
}

common_json format_of(const is_chat &chat, const common_chat_params &params)
{
    common_json format = common_json::object();
    format["grammar"] = params.grammar;
    format["lazy"] = params.grammar_lazy;
    add_triggers(chat, params, format);
    auto preserved = common_json::array();
    for (const auto &text : params.preserved_tokens) {
        llama_token token = single_token(chat.vocab, text);
        if (token != LLAMA_TOKEN_NULL) preserved.push_back(token);
    }
    format["preserved"] = preserved;
    format["stops"] = params.additional_stops;
    format["opening"] = params.generation_prompt;
    format["form"] = static_cast<int>(params.format);
    format["parser"] = params.parser;
    return format;
}

/* Whether the grammar takes this text from its beginning. */
bool begins_with(const llama_vocab *vocab, const std::string &grammar, const std::string &text)
{
    llama_sampler *sampler = llama_sampler_init_grammar(vocab, grammar.c_str(), "root");
    if (sampler == nullptr) return false;
    bool fits = true;
    try {
        for (llama_token token : common_tokenize(vocab, text, false, true)) llama_sampler_accept(sampler, token);
    } catch (const std::exception &) {
        fits = false;
    }
    llama_sampler_free(sampler);
    return fits;
}

/*
 * A call that must be made may still have text in front of it, and a small model then writes text until its tokens are
 * used up.  So where the form has a word that begins a call, the prompt ends with it; not where a model thinks first.
 */
void begin_call(const is_chat &chat, common_chat_templates_inputs inputs, common_chat_params &params)
{
    if (chat.vocab == nullptr || params.supports_thinking || params.grammar_lazy || params.grammar.empty()) return;
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_AUTO; /* which says how a call begins */
    const auto triggers = common_chat_templates_apply(chat.all.get(), inputs).grammar_triggers;
    if (triggers.empty() || triggers[0].type != COMMON_GRAMMAR_TRIGGER_TYPE_WORD) return;
    const std::string &word = triggers[0].value;
    if (!begins_with(chat.vocab, params.grammar, params.generation_prompt + word)) return;
    params.prompt += word;
    params.generation_prompt += word;
}

/* Nine letters and digits: some templates take no other ids. */
std::string new_call_id()
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    std::random_device random;
    std::uniform_int_distribution<size_t> pick(0, sizeof letters - 2);
    std::string id;
    while (id.size() < 9) id.push_back(letters[pick(random)]);
    return id;
}

common_json calls_of(const common_chat_msg &message)
{
    auto calls = common_json::array();
    for (const auto &call : message.tool_calls) {
        common_json function = common_json::object();
        function["name"] = call.name;
        function["arguments"] = call.arguments;
        common_json one = common_json::object();
        one["id"] = call.id.empty() ? new_call_id() : call.id;
        one["type"] = "function";
        one["function"] = function;
        calls.push_back(one);
    }
    return calls;
}

/* llama.cpp takes any string where it cannot follow a pattern; its grammar is then this pattern's, whatever it says. */
std::string any_string_grammar(const std::string &pattern)
{
    common_json schema = common_json::object();
    schema["type"] = "string";
    schema["pattern"] = pattern;
    return json_schema_to_grammar(schema);
}

void check_patterns(const common_json &schema)
{
    if (schema.is_array())
        for (const auto &item : schema) check_patterns(item);
    if (!schema.is_object()) return;
    for (const auto &[key, value] : schema.items()) {
        if (key == "const" || key == "enum" || key == "default" || key == "examples") continue;
        if (key == "pattern" && value.is_string()) {
            const auto pattern = value.get<std::string>();
            if (any_string_grammar(pattern) == any_string_grammar("x"))
                throw std::invalid_argument(
                    "the pattern " + pattern +
                    " cannot be kept to; it must begin with ^, end with $, and look neither ahead "
                    "nor behind");
        }
        check_patterns(value);
    }
}

is_status open_chat(const llama_model *model, const std::string &text, const std::string &bos, const std::string &eos,
                    is_chat **out, is_error *err)
{
    *out = nullptr;
    return guard(err, IS_EUNSUPPORTED, [&] {
        auto chat = std::make_unique<is_chat>();
        chat->all = common_chat_templates_init(model, model != nullptr ? "" : text, bos, eos);
        chat->plain = std::make_unique<common_chat_template>(common_chat_templates_source(chat->all.get()), bos, eos);
        if (model != nullptr) {
            chat->vocab = llama_model_get_vocab(model);
            chat->add_bos = llama_vocab_get_add_bos(chat->vocab);
        }
        chat->tools = common_chat_templates_get_caps(chat->all.get())["supports_tools"];
        *out = chat.release();
    });
}

} // namespace

is_status is_chat_open(const struct llama_model *model, is_chat **out, is_error *err)
{
    *out = nullptr;
    const char *text = llama_model_chat_template(model, nullptr);
    if (text == nullptr) return fail(err, IS_EUNSUPPORTED, "the model file has no chat template");
    const llama_vocab *vocab = llama_model_get_vocab(model);
    std::string bos, eos;
    is_status status = guard(err, IS_EUNSUPPORTED, [&] {
        bos = text_of_token(vocab, llama_vocab_bos(vocab));
        eos = text_of_token(vocab, llama_vocab_eos(vocab));
    });
    return status != IS_OK ? status : open_chat(model, text, bos, eos, out, err);
}

is_status is_chat_open_text(const char *text, const char *bos, const char *eos, is_chat **out, is_error *err)
{
    return open_chat(nullptr, text, bos, eos, out, err);
}

void is_chat_close(is_chat *chat)
{
    delete chat;
}

bool is_chat_has_tools(const is_chat *chat)
{
    return chat->tools;
}

is_status is_chat_render(const is_chat *chat, const is_chat_message *messages, size_t n, char **prompt, is_error *err)
{
    *prompt = nullptr;
    return guard(err, IS_EUNSUPPORTED, [&] {
        autoparser::generation_params params;
        params.messages = common_json::array();
        for (size_t i = 0; i < n; i++)
            params.messages.push_back({{"role", messages[i].role}, {"content", messages[i].content}});
        params.add_generation_prompt = true;
        params.add_bos = chat->add_bos;
        *prompt = copy(common_chat_template_direct_apply(*chat->plain, params));
    });
}

is_status is_chat_render_tools(const is_chat *chat, const is_chat_message *messages, size_t n,
                               const is_chat_tools *tools, char **prompt, char **format, is_error *err)
{
    *prompt = *format = nullptr;
    is_status status = guard(err, IS_EINVAL, [&] {
        common_chat_templates_inputs inputs;
        inputs.messages = messages_of(messages, n);
        inputs.tools = common_chat_tools_parse_oaicompat(common_json::parse(tools->functions));
        inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(tools->choice);
        inputs.parallel_tool_calls =
            !tools->one_call && common_chat_templates_get_caps(chat->all.get())["supports_parallel_tool_calls"];
        if (tools->json_schema != nullptr) inputs.json_schema = tools->json_schema;
        inputs.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
        auto params = common_chat_templates_apply(chat->all.get(), inputs);
        if (inputs.tool_choice == COMMON_CHAT_TOOL_CHOICE_REQUIRED) begin_call(*chat, inputs, params);
        *prompt = copy(params.prompt);
        auto made = format_of(*chat, params);
        made["one_call"] = tools->one_call;
        *format = copy(made.dump());
    });
    if (status != IS_OK) {
        std::free(*prompt);
        *prompt = nullptr;
    }
    return status;
}

is_status is_chat_parse(const char *format, const char *text, bool cut, char **content, char **calls, is_error *err)
{
    *content = *calls = nullptr;
    is_status status = guard(err, IS_EENGINE, [&] {
        const auto from = common_json::parse(format);
        common_chat_parser_params params;
        params.format = static_cast<common_chat_format>(from.at("form").get<int>());
        params.reasoning_format = COMMON_REASONING_FORMAT_AUTO;
        params.generation_prompt = from.at("opening").get<std::string>();
        const auto parser = from.at("parser").get<std::string>();
        if (!parser.empty()) params.parser.load(parser);
        const auto message = common_chat_parse(text, cut, params);
        *content = copy(message.content);
        if (!message.tool_calls.empty()) *calls = copy(calls_of(message).dump_safe());
    });
    if (status != IS_OK) {
        std::free(*content);
        *content = nullptr;
    }
    return status;
}

is_status is_schema_grammar(const char *schema, char **gbnf, is_error *err)
{
    *gbnf = nullptr;
    return guard(err, IS_EINVAL, [&] {
        auto root = common_json::parse(schema);
        if (root.is_object() && root.empty()) root["type"] = "object";
        check_patterns(root);
        *gbnf = copy(json_schema_to_grammar(root));
    });
}

is_status is_grammar_apply(struct llama_sampler *grammar, struct llama_token_data_array *candidates, is_error *err)
{
    return guard(err, IS_EENGINE, [&] { llama_sampler_apply(grammar, candidates); });
}

bool is_grammar_allows(struct llama_sampler *grammar, int32_t token)
{
    llama_token_data one = {token, 0.0f, 0.0f};
    llama_token_data_array only = {&one, 1, -1, false};
    return guard(nullptr, IS_EENGINE, [&] { llama_sampler_apply(grammar, &only); }) == IS_OK && !std::isinf(one.logit);
}

bool is_grammar_complete(struct llama_sampler *grammar, int32_t end, int32_t letter)
{
    llama_token_data both[2] = {{end, 0.0f, 0.0f}, {letter, 0.0f, 0.0f}};
    llama_token_data_array all = {both, 2, -1, false};
    return guard(nullptr, IS_EENGINE, [&] { llama_sampler_apply(grammar, &all); }) == IS_OK &&
           !std::isinf(both[0].logit) && std::isinf(both[1].logit);
}

is_status is_grammar_accept(struct llama_sampler *grammar, int32_t token, is_error *err)
{
    return guard(err, IS_EENGINE, [&] { llama_sampler_accept(grammar, token); });
}

struct llama_sampler *is_grammar_open(const struct llama_vocab *vocab, const char *gbnf, const char **patterns,
                                      size_t n_patterns, const int32_t *tokens, size_t n_tokens)
{
    struct llama_sampler *out = nullptr;
    (void)guard(nullptr, IS_EINVAL, [&] {
        out = n_patterns + n_tokens == 0 ? llama_sampler_init_grammar(vocab, gbnf, "root")
                                         : llama_sampler_init_grammar_lazy_patterns(vocab, gbnf, "root", patterns,
                                                                                    n_patterns, tokens, n_tokens);
    });
    return out;
}
