"""Folders of tiny models with random weights, in the form in which each package saves its models."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from ctvr.methods.backbone.architectures import SHIPPED

WORDS = [
    "a",
    "the",
    "red",
    "green",
    "circle",
    "square",
    "star",
    "ring",
    "is",
    "on",
    "train",
    "test",
    "val",
    "video",
    "of",
]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
OF_QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>"]
OF_QWEN += ["<|video_pad|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} {% for part in message['content'] %}"
    "{% if part['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
)


def open_clip_folder(folder: Path) -> str:
    """Write the shipped tiny CLIP as a folder of open_clip; return the name by which open_clip loads it."""
    shipped = SHIPPED["tiny-clip"]
    config = json.loads((shipped / "config.json").read_text(encoding="utf-8"))
    config["model"]["text_cfg"]["tokenizer_kwargs"] = {"bpe_path": str(shipped / "bpe.txt.gz")}
    folder.mkdir()
    made = {"model_cfg": config["model"], "preprocess_cfg": {"mean": config["mean"], "std": config["std"]}}
    (folder / "open_clip_config.json").write_text(json.dumps(made))
    shutil.copy(shipped / "weights.safetensors", folder / "open_clip_model.safetensors")
    return f"local-dir:{folder}"


def clip_folder(folder: Path) -> str:
    """Write a CLIPModel with its processor."""
    from transformers import CLIPConfig, CLIPModel, CLIPProcessor

    tokenizer, image = _tokenizer(16), _image_processor("CLIPImageProcessor")
    text = {"vocab_size": len(tokenizer), "eos_token_id": tokenizer.eos_token_id, "max_position_embeddings": 16}
    config = CLIPConfig(text_config=_small() | text, vision_config=_small() | _IMAGE, projection_dim=24)
    return _save(folder, _random(CLIPModel, config), CLIPProcessor(image, tokenizer))


def siglip_folder(folder: Path) -> str:
    """Write a SiglipModel, the class as which files of SigLIP2 with a fixed image size load."""
    from transformers import SiglipConfig, SiglipModel, SiglipProcessor

    tokenizer, image = _tokenizer(16), _image_processor("SiglipImageProcessor")
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 16, "projection_size": 32}
    config = SiglipConfig(text_config=_small() | text, vision_config=_small() | _IMAGE)
    return _save(folder, _random(SiglipModel, config), SiglipProcessor(image, tokenizer))


def siglip2_folder(folder: Path) -> str:
    """Write a Siglip2Model (NaFlex): images of any shape as at most 16 patches."""
    from transformers import Siglip2Config, Siglip2ImageProcessor, Siglip2Model, Siglip2Processor

    tokenizer = _tokenizer(16)
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": 16, "projection_size": 32}
    vision = {"num_patches": 16, "patch_size": 8}
    config = Siglip2Config(text_config=_small() | text, vision_config=_small() | vision)
    image = Siglip2ImageProcessor(patch_size=8, max_num_patches=16)
    return _save(folder, _random(Siglip2Model, config), Siglip2Processor(image, tokenizer))


def qwen_folder(folder: Path) -> str:
    """Write a Qwen3VLForConditionalGeneration, the class that released files of Qwen3-VL-Embedding name."""
    from transformers import (
        Qwen2VLImageProcessor,
        Qwen3VLConfig,
        Qwen3VLForConditionalGeneration,
        Qwen3VLProcessor,
        Qwen3VLVideoProcessor,
    )

    tokenizer = _tokenizer(512, OF_QWEN)
    ids = tokenizer.convert_tokens_to_ids
    text: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 4096}
    text |= {"vocab_size": len(tokenizer), "rope_parameters": {"rope_type": "default", "mrope_section": [4, 2, 2]}}
    text["rope_parameters"]["rope_theta"] = 10000.0
    vision = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2, "out_hidden_size": 32}
    vision |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    config = Qwen3VLConfig(
        text_config=_small() | text,
        vision_config=vision,
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
    )
    parts = Qwen2VLImageProcessor(patch_size=16), tokenizer, Qwen3VLVideoProcessor()
    processor = Qwen3VLProcessor(*parts, chat_template=TEMPLATE)
    return _save(folder, _random(Qwen3VLForConditionalGeneration, config), processor)


def sentence_folder(folder: Path, has_images: bool) -> str:
    """Write a SentenceTransformer: a CLIPModel, or a mean over the words of a BERT at unit length."""
    from sentence_transformers import SentenceTransformer
    from transformers import BertConfig, BertModel

    plain = folder.with_name(f"{folder.name}-plain")
    if has_images:
        from sentence_transformers.base.modules import Transformer

        SentenceTransformer(modules=[Transformer(clip_folder(plain))], device="cpu").save(str(folder))
        return str(folder)
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling

    tokenizer = _tokenizer(16)
    _save(plain, _random(BertModel, BertConfig(**_small(), vocab_size=len(tokenizer))), tokenizer)
    words = Transformer(str(plain))
    SentenceTransformer(modules=[words, Pooling(32), Normalize()], device="cpu").save(str(folder))
    return str(folder)


_IMAGE = {"image_size": 32, "patch_size": 8}


def _small() -> dict[str, Any]:
    return {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}


def _random(kind: Any, config: Any) -> Any:
    torch.manual_seed(0)
    return kind(config).eval()


def _save(folder: Path, model: Any, processor: Any) -> str:
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)


def _tokenizer(length: int, more: list[str] | None = None) -> Any:
    """Return a tokenizer of whole words."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = SPECIAL + (more or [])
    made = Tokenizer(models.WordLevel({word: i for i, word in enumerate(special + WORDS)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if more is None:
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 3)]
        )
    named = {"pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(
        tokenizer_object=made, model_max_length=length, additional_special_tokens=more or [], **named
    )


def _image_processor(name: str) -> Any:
    import transformers

    size = {"height": 32, "width": 32} if name.startswith("Sig") else {"shortest_edge": 32}
    crop = {} if name.startswith("Sig") else {"crop_size": {"height": 32, "width": 32}}
    return getattr(transformers, name)(size=size, **crop)
