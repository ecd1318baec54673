"""Laws of the process that renders chat templates."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from tiny import CHAT_TEMPLATE, tiny_tokenizer

from zoo import templates
from zoo.errors import ModelError, TransientModelError
from zoo.prompts import load_prompts
from zoo.templates import render_chats

TEXTS = load_prompts(10).texts
VARIABLES = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
ENDLESS = "{% for a in range(9999) %}" * 3 + "{% endfor %}" * 3

TEMPLATES = {
    "roles": CHAT_TEMPLATE,
    "whitespace control": (
        "{%- for message in messages -%}\n    {%- if message.role == 'user' %}\n[INST] "
        "{{ message.content | trim }} [/INST]\n    {%- endif %}\n{% endfor %}\n{{- eos_token -}}\n"
    ),
    "undeclared variables": (
        "{% if tools is defined and tools is not none %}tools{% endif %}{% if enable_thinking is defined and "
        "enable_thinking is false %}<think></think>{% endif %}{{ missing }}{{ messages[0]['content'] }}"
    ),
    "namespace and loop control": (
        "{% set seen = namespace(count=0) %}{% for m in messages %}{% set seen.count = seen.count + 1 %}"
        "{{ m | tojson }}{% if seen.count > 0 %}{% break %}{% endif %}{% endfor %}{{ seen.count }}"
    ),
    "generation block": (
        "{% for m in messages %}{{ m['content'] }}{% endfor %}{% generation %}"
        "{{ bos_token }}{% endgeneration %}"
    ),
    "other alphabets": "用户：{{ messages[-1]['content'] }}\n助手：{{ '\u00e9\U0001f40b' }}",
    "macros": (
        "{% macro turn(m) %}{{ m.role | upper }}: {{ m.content }}{% endmacro %}{{ turn(messages[0]) }}"
        "{% if add_generation_prompt %}\n\n{% endif %}"
    ),
}


def refused(template: str, **options) -> ModelError:
    with pytest.raises(ModelError) as caught:
        render_chats(template, TEXTS, variables=VARIABLES, **options)
    assert caught.value.stage == "render"
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)
    return caught.value


def children_of(process: int) -> set[str]:
    """The processes a process has started and that still exist, unreaped ones included."""
    return {
        child
        for task in Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    }


def as_transformers_renders(tokenizer, texts=TEXTS) -> list[str]:
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
        )
        for text in texts
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_renders_to_the_string_transformers_renders(name):
    tokenizer = tiny_tokenizer(chat_template=TEMPLATES[name])
    ours = render_chats(TEMPLATES[name], TEXTS, variables=tokenizer.special_tokens_map)
    assert ours == as_transformers_renders(tokenizer)


def test_smollm2s_template_renders_to_the_string_transformers_renders(smollm2_tokenizer):
    texts = load_prompts().texts
    ours = render_chats(
        smollm2_tokenizer.chat_template, texts, variables=smollm2_tokenizer.special_tokens_map
    )
    assert ours == as_transformers_renders(smollm2_tokenizer, texts)


def test_a_template_sees_the_same_date_on_every_day():
    template = "{% if strftime_now is defined %}{{ strftime_now('%d %b %Y %H:%M') }}{% endif %}"
    assert render_chats(template, TEXTS[:1], variables={}) == ["26 Jul 2024 12:00"]


def test_a_template_that_draws_at_random_renders_the_same_twice():
    template = "{% for _ in range(20) %}{{ [1, 2, 3] | random }}{% endfor %}"
    assert len(set(render_chats(template, TEXTS, variables={}))) == 1


def test_a_looping_template_ends_within_the_limit_and_leaves_no_process():
    before, start = children_of(os.getpid()), time.monotonic()
    error = refused(ENDLESS, seconds=1)
    assert error.reason == "template_timeout"
    assert "within 1 seconds" in str(error)
    assert time.monotonic() - start < 20
    assert children_of(os.getpid()) == before


def test_a_template_that_never_leaves_c_code_ends_within_the_limit():
    power = "{{ (7 ** 9999999) ** 99 % 10 }}"
    assert refused(power, seconds=1).reason == "template_timeout"


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'x' * 3000000000 }}",
        "{% set n = namespace(s='x') %}{% for _ in range(33) %}{% set n.s = n.s + n.s %}{% endfor %}",
        "{% for _ in range(3000) %}{{ 'x' * 1000000 }}{% endfor %}",
    ],
)
def test_a_template_that_builds_a_string_of_gigabytes_is_refused(template):
    error = refused(template)
    assert error.reason == "template_memory"
    assert "512 MiB" in str(error)


def test_a_template_that_writes_more_than_a_prompt_may_have_is_refused():
    assert refused("{{ 'x' * 32769 }}").reason == "template_output"
    assert render_chats("{{ 'x' * 32768 }}", TEXTS[:1], variables={}) == ["x" * 32768]


def test_a_template_that_raises_gives_its_own_words_in_one_line():
    error = refused("{{ raise_exception('Conversation roles\nmust alternate') }}")
    assert error.reason == "template_failed"
    assert "failed: Conversation roles must alternate;" in str(error)


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}",
        "{{ messages[0].content.no.such.thing }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% include 'other' %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
        "{{ range(1000000) | list }}",
        "{{ 1 / 0 }}",
        "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    ],
)
def test_a_broken_or_hostile_template_is_refused(template):
    assert refused(template).reason in ("template_failed", "template_memory")


def test_the_callers_secrets_are_not_in_the_renderers_environment(monkeypatch, tmp_path):
    script = tmp_path / "environment.py"
    script.write_text("import json, os; print(json.dumps({'texts': [str(dict(os.environ))]}))")
    monkeypatch.setattr(templates, "RENDERER", script)
    monkeypatch.setenv("HF_TOKEN", "canary")
    (environment,) = render_chats("", ["x"], variables={})
    assert "OPENBLAS_NUM_THREADS" in environment
    assert "canary" not in environment


def test_a_looping_template_ends_even_when_its_caller_was_killed():
    code = (
        f"from zoo.templates import render_chats; render_chats({ENDLESS!r}, ['x'], variables={{}}, seconds=2)"
    )
    caller = subprocess.Popen([sys.executable, "-c", code])
    while not (renderers := children_of(caller.pid)):
        time.sleep(0.01)
    time.sleep(1)
    caller.kill()
    caller.wait()
    (renderer,) = renderers
    deadline = time.monotonic() + 30
    while Path(f"/proc/{renderer}/exe").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path(f"/proc/{renderer}/exe").exists()


def test_templates_render_beside_torch_threads_and_from_any_thread():
    import torch

    answers = []

    def work():
        (torch.ones(300, 300) @ torch.ones(300, 300)).sum()
        answers.append(render_chats(CHAT_TEMPLATE, TEXTS, variables=VARIABLES))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [render_chats(CHAT_TEMPLATE, TEXTS, variables=VARIABLES)] * 2


def test_templates_render_inside_a_ray_worker():
    ray = pytest.importorskip("ray")
    started = not ray.is_initialized()
    if started:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, configure_logging=False)
    try:

        @ray.remote
        def work(template, texts, variables):
            from zoo.templates import render_chats

            return render_chats(template, texts, variables=variables)

        rendered = ray.get(work.remote(CHAT_TEMPLATE, list(TEXTS), VARIABLES), timeout=120)
    finally:
        if started:
            ray.shutdown()
    assert rendered == render_chats(CHAT_TEMPLATE, TEXTS, variables=VARIABLES)


def test_a_renderer_that_cannot_start_is_worth_another_try(monkeypatch):
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    with pytest.raises(TransientModelError) as caught:
        render_chats(CHAT_TEMPLATE, TEXTS, variables=VARIABLES)
    assert caught.value.reason == "renderer_failed"
    assert "/nonexistent/python" in str(caught.value)


def test_a_missing_jinja_is_the_machines_fault_and_not_the_templates(monkeypatch, tmp_path):
    (tmp_path / "jinja2.py").write_text("__version__ = '3.0.0'")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    with pytest.raises(TransientModelError) as caught:
        render_chats(CHAT_TEMPLATE, TEXTS, variables=VARIABLES)
    assert caught.value.reason == "renderer_failed"


def test_a_renderer_without_transformers_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "site-packages" not in entry])
    with pytest.raises(TransientModelError, match="No module named 'transformers'"):
        render_chats(CHAT_TEMPLATE, TEXTS, variables=VARIABLES)
