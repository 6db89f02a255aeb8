"""Shapes of published convolutional and recurrent models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planaria.profile.presets.shapes import LayerShape, ModelShape, Operation, cross_entropy, elementwise, product

_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Image:
    """A batch of feature maps: channels, and height and width alike."""

    batch: int
    channels: int
    side: int

    @property
    def values(self) -> int:
        return self.batch * self.channels * self.side**2

    def convolved(
        self, channels: int, kernel: int, *, stride: int = 1, padding: int | None = None, groups: int = 1, bias: bool
    ) -> tuple[_Image, Operation]:
        """Returns a convolution and its output. Padding: half the kernel, where not given."""
        around = kernel // 2 if padding is None else padding
        out = _Image(batch=self.batch, channels=channels, side=(self.side + 2 * around - kernel) // stride + 1)
        weights = channels * (self.channels // groups) * kernel**2
        operation = Operation(
            multiply_adds=out.batch * out.side**2 * weights,
            moved=self.values + out.values,
            kept=self.values,
            weights=weights + (channels if bias else 0),
        )
        return out, operation

    def pooled(self, kernel: int, stride: int, padding: int = 0) -> tuple[_Image, Operation]:
        """Returns a maximum pooling and its output; the places of the maxima are kept (8 bytes each, four values)."""
        side = (self.side + 2 * padding - kernel) // stride + 1
        out = _Image(batch=self.batch, channels=self.channels, side=side)
        return out, Operation(moved=self.values + out.values, kept=4 * out.values)

    def normalised(self) -> Operation:
        """Returns a batch normalisation: statistics, then values."""
        return elementwise(self.values, operands=3, kept=self.values, weights=2 * self.channels, launches=2)

    def rectified(self) -> Operation:
        """Returns a rectification in place: what is kept is the next operation's input."""
        return elementwise(self.values)


def _resnet152(batch: int, _: int) -> tuple[LayerShape, ...]:
    image = _Image(batch=batch, channels=3, side=224)
    first, convolution = image.convolved(64, 7, stride=2, bias=False)
    pooled, pooling = first.pooled(3, 2, padding=1)
    operations = (convolution, first.normalised(), first.rectified(), pooling)
    layers = [LayerShape(name="stem", operations=operations, input_values=image.values, output_values=pooled.values)]
    image = pooled
    for stage, (blocks, width) in enumerate(((3, 64), (8, 128), (36, 256), (3, 512)), start=1):
        for block in range(blocks):
            stride = 2 if stage > 1 and block == 0 else 1
            layer, image = _bottleneck(f"stage.{stage}.block.{block}", image, width, stride)
            layers.append(layer)
    head = (
        elementwise(image.values, operands=1),
        product(batch, image.channels, _CLASSES),
        cross_entropy(batch, _CLASSES),
    )
    return (*layers, LayerShape(name="head", operations=head, input_values=image.values, output_values=0))


def _bottleneck(name: str, image: _Image, width: int, stride: int) -> tuple[LayerShape, _Image]:
    """Returns three convolutions with a shortcut around them; the stride is in the middle one."""
    operations = []
    out = image
    for channels, kernel, step in ((width, 1, 1), (width, 3, stride), (4 * width, 1, 1)):
        out, convolution = out.convolved(channels, kernel, stride=step, bias=False)
        operations += [convolution, out.normalised()]
        if channels == width:
            operations.append(out.rectified())
    if image.channels != out.channels:
        around, convolution = image.convolved(out.channels, 1, stride=stride, bias=False)
        operations += [convolution, around.normalised()]
    operations += [elementwise(out.values, operands=3), out.rectified()]
    layer = LayerShape(name=name, operations=tuple(operations), input_values=image.values, output_values=out.values)
    return layer, out


def _dense(batch: int, sizes: tuple[int, ...]) -> Iterator[LayerShape]:
    """Yields linear layers with dropout; the last gives the classes."""
    for number, (inputs, outputs) in enumerate(zip(sizes, (*sizes[1:], _CLASSES), strict=True)):
        last = number == len(sizes) - 1
        after = (
            cross_entropy(batch, _CLASSES) if last else elementwise(batch * outputs, operands=4, kept=batch * outputs)
        )
        yield LayerShape(
            name=f"dense.{number}",
            operations=(product(batch, inputs, outputs), after),
            input_values=batch * inputs,
            output_values=0 if last else batch * outputs,
        )


def _convolution(number: int, operations: Sequence[Operation], before: _Image, after: _Image) -> LayerShape:
    return LayerShape(
        name=f"convolution.{number}",
        operations=tuple(operations),
        input_values=before.values,
        output_values=after.values,
    )


def _vgg19(batch: int, _: int) -> tuple[LayerShape, ...]:
    image = _Image(batch=batch, channels=3, side=224)
    layers: list[LayerShape] = []
    for channels, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for number in range(count):
            before = image
            image, convolution = image.convolved(channels, 3, bias=True)
            operations = [convolution, image.rectified()]
            if number == count - 1:
                image, pooling = image.pooled(2, 2)
                operations.append(pooling)
            layers.append(_convolution(len(layers), operations, before, image))
    return (*layers, *_dense(batch, (512 * 7 * 7, 4096, 4096)))


def _alexnet(batch: int, _: int) -> tuple[LayerShape, ...]:
    image = _Image(batch=batch, channels=3, side=227)
    layers: list[LayerShape] = []
    # Channels, kernel, stride, padding, groups, whether a pooling follows.
    for channels, kernel, stride, padding, groups, pools in (
        (96, 11, 4, 0, 1, True),
        (256, 5, 1, 2, 2, True),
        (384, 3, 1, 1, 1, False),
        (384, 3, 1, 1, 2, False),
        (256, 3, 1, 1, 2, True),
    ):
        before = image
        image, convolution = image.convolved(channels, kernel, stride=stride, padding=padding, groups=groups, bias=True)
        operations = [convolution, image.rectified()]
        if pools:
            image, pooling = image.pooled(3, 2)
            operations.append(pooling)
        layers.append(_convolution(len(layers), operations, before, image))
    return (*layers, *_dense(batch, (256 * 6 * 6, 4096, 4096)))


_WIDTH = 1024
_WORDS = 32000


def _lstm(rows: int, positions: int, inputs: int) -> tuple[Operation, ...]:
    """Returns an LSTM: all inputs in one product, then position after position, the weights read anew each time."""
    gates = 4 * _WIDTH
    recurrence = Operation(
        multiply_adds=rows * _WIDTH * gates,
        moved=rows * (2 * gates + 2 * _WIDTH),
        kept=rows * (gates + 2 * _WIDTH),
        weights=_WIDTH * gates + gates,
        weight_reads=positions,
        launches=positions,
    )
    return product(rows, inputs, gates), recurrence


def _gnmt16(batch: int, positions: int) -> tuple[LayerShape, ...]:
    rows = batch * positions
    values = rows * _WIDTH
    lookup = Operation(moved=3 * values, weights=_WORDS * _WIDTH, weight_reads=0)
    layers = [LayerShape(name="embedding", operations=(lookup,), input_values=0, output_values=values)]
    both = (*_lstm(rows, positions, _WIDTH), *_lstm(rows, positions, _WIDTH))
    layers.append(LayerShape(name="encoder.0", operations=both, input_values=values, output_values=2 * values))
    for number in range(1, 8):
        inputs = 2 * _WIDTH if number == 1 else _WIDTH
        around = elementwise(values, operands=5, kept=values / 2, launches=2)
        layers.append(
            LayerShape(
                name=f"encoder.{number}",
                operations=(*_lstm(rows, positions, inputs), around),
                input_values=rows * inputs,
                output_values=values,
            )
        )
    attention = (
        product(rows, _WIDTH, _WIDTH, bias=False),
        product(rows, _WIDTH, _WIDTH, bias=False),
        Operation(multiply_adds=2 * values * positions, moved=4 * values, kept=3 * values, weights=_WIDTH, launches=3),
    )
    for number in range(8):
        # Every layer of the decoder takes the layer below and the attention's context.
        operations = (*_lstm(rows, positions, 2 * _WIDTH), elementwise(values, operands=5, kept=values / 2, launches=2))
        layers.append(
            LayerShape(
                name=f"decoder.{number}",
                operations=(lookup, *operations, *attention) if number == 0 else operations,
                input_values=values if number == 0 else 2 * values,
                output_values=values if number == 7 else 2 * values,
            )
        )
    head = (product(rows, _WIDTH, _WORDS), cross_entropy(rows, _WORDS))
    return (*layers, LayerShape(name="head", operations=head, input_values=values, output_values=0))


CONVOLUTIONAL: dict[str, ModelShape] = {
    "resnet-152": ModelShape(
        title="ResNet-152",
        layers=_resnet152,
        microbatch_size=16,
        sequence_length=0,
        published_parameters=60_200_000,
        source="He et al., Deep Residual Learning (2016), table 1",
        remarks="224 x 224 images; strides in the 3 x 3 convolutions, as torchvision has them",
    ),
    "vgg-19": ModelShape(
        title="VGG-19",
        layers=_vgg19,
        microbatch_size=16,
        sequence_length=0,
        published_parameters=144_000_000,
        source="Simonyan and Zisserman, Very Deep Convolutional Networks (2015), tables 1 and 2",
        remarks="224 x 224 images",
    ),
    "alexnet": ModelShape(
        title="AlexNet",
        layers=_alexnet,
        microbatch_size=64,
        sequence_length=0,
        published_parameters=60_000_000,
        source="Krizhevsky et al., ImageNet Classification (2012), section 3.5",
        remarks="227 x 227 images; response normalisation left out",
    ),
}
RECURRENT: dict[str, ModelShape] = {
    "gnmt-16": ModelShape(
        title="GNMT-16",
        layers=_gnmt16,
        microbatch_size=32,
        sequence_length=50,
        published_parameters=278_000_000,
        source="Wu et al., Google's Neural Machine Translation (2016); counted by Shazeer et al. (2017), table 2",
        remarks="8 encoder layers (the first in both directions) and 8 decoder layers; 50 tokens in source and target",
    ),
}
