"""Where the texts of a figure are."""

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text


def texts_of(picture):
    """Every text that is drawn in a picture, with the box it takes."""
    canvas = FigureCanvasAgg(picture)
    canvas.draw()  # lays it out
    renderer, drawn = canvas.get_renderer(), []
    renderer.draw_text = lambda *_, mtext=None, **options: drawn.append(mtext)
    picture.draw(renderer)
    several_lines = [text for text in picture.findobj(Text) if "\n" in text.get_text()]
    texts = dict.fromkeys([text for text in drawn if text is not None] + several_lines)
    return [(text.get_text(), text.get_window_extent(renderer)) for text in texts]


def check_places(shown, page):
    """No text is cut off or lies on another."""
    for text, box in shown:
        assert box.x0 > page.x0 - 1, text
        assert box.x1 < page.x1 + 1, text
        assert box.y0 > page.y0 - 1, text
        assert box.y1 < page.y1 + 1, text
    for n, (one, a) in enumerate(shown):
        for other, b in shown[:n]:
            across = min(a.x1, b.x1) - max(a.x0, b.x0)
            upright = min(a.y1, b.y1) - max(a.y0, b.y0)
            assert across < 2 or upright < 2, (one, other)
