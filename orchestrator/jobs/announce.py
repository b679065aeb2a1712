"""What a sweep or a table says of itself before it begins, in words that both use."""

from __future__ import annotations

from orchestrator.on_ray.plan import SearchConfig


def confirm_text(search: SearchConfig) -> str:
    """What happens to the best trials before one is believed."""
    if not search.confirm:
        return "nothing: the best trial is believed"
    return (
        f"the best {search.confirm} and the recommended settings over {search.confirm_seeds} fresh seeds on the same "
        "videos; the recommendation keeps its place unless one wins"
    )


def schedule_text(search: SearchConfig) -> str:
    """How trials are run and stopped."""
    return f"scheduler {search.scheduler} in waves of {search.wave} (points that train the same model are one trial)"


def videos_text(decoded: int) -> str:
    return f"{decoded} decoded now, the rest was in the store" if decoded else "0 decoded: all are in the store"
