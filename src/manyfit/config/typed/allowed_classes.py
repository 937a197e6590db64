"""The classes and functions that may be built from an artifact, by module and name.

A config is a program: it may name any component. An artifact (an export, a checkpoint, a run folder that was
trained elsewhere) is data: only the classes listed here are built from it. Everything listed only computes
with its arguments when it is created or called: it opens no file for writing, starts no process, imports
nothing by name and evaluates no text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_NAMES: Final[Mapping[str, str]] = {
    "torch.nn": """
        AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d AdaptiveLogSoftmaxWithLoss AdaptiveMaxPool1d
        AdaptiveMaxPool2d AdaptiveMaxPool3d AlphaDropout AvgPool1d AvgPool2d AvgPool3d BCELoss
        BCEWithLogitsLoss BatchNorm1d BatchNorm2d BatchNorm3d Bilinear CELU CTCLoss ChannelShuffle
        CircularPad1d CircularPad2d CircularPad3d ConstantPad1d ConstantPad2d ConstantPad3d Conv1d Conv2d
        Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d CosineEmbeddingLoss CosineSimilarity
        CrossEntropyLoss Dropout Dropout1d Dropout2d Dropout3d ELU Embedding EmbeddingBag FeatureAlphaDropout
        Flatten Fold FractionalMaxPool2d FractionalMaxPool3d GELU GLU GRU GRUCell GaussianNLLLoss GroupNorm
        Hardshrink Hardsigmoid Hardswish Hardtanh HingeEmbeddingLoss HuberLoss Identity InstanceNorm1d
        InstanceNorm2d InstanceNorm3d KLDivLoss L1Loss LPPool1d LPPool2d LPPool3d LSTM LSTMCell LayerNorm
        LeakyReLU Linear LocalResponseNorm LogSigmoid LogSoftmax MSELoss MarginRankingLoss MaxPool1d MaxPool2d
        MaxPool3d MaxUnpool1d MaxUnpool2d MaxUnpool3d Mish ModuleDict ModuleList MultiLabelMarginLoss
        MultiLabelSoftMarginLoss MultiMarginLoss MultiheadAttention NLLLoss PReLU PairwiseDistance
        PixelShuffle PixelUnshuffle PoissonNLLLoss RMSNorm RNN RNNCell RReLU ReLU ReLU6 ReflectionPad1d
        ReflectionPad2d ReflectionPad3d ReplicationPad1d ReplicationPad2d ReplicationPad3d SELU Sequential
        SiLU Sigmoid SmoothL1Loss SoftMarginLoss Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh
        Tanhshrink Threshold Transformer TransformerDecoder TransformerDecoderLayer TransformerEncoder
        TransformerEncoderLayer TripletMarginLoss TripletMarginWithDistanceLoss Unflatten Unfold Upsample
        UpsamplingBilinear2d UpsamplingNearest2d ZeroPad1d ZeroPad2d ZeroPad3d
    """,
    "torch.nn.functional": """
        binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy elu gelu
        gaussian_nll_loss hardswish hinge_embedding_loss huber_loss kl_div l1_loss leaky_relu log_softmax
        margin_ranking_loss mish mse_loss multi_margin_loss multilabel_margin_loss
        multilabel_soft_margin_loss nll_loss poisson_nll_loss relu relu6 selu sigmoid silu smooth_l1_loss
        soft_margin_loss softmax softplus tanh
    """,
    "torch.optim": """
        ASGD Adadelta Adafactor Adagrad Adam AdamW Adamax LBFGS Muon NAdam RAdam RMSprop Rprop SGD SparseAdam
    """,
    "torch.optim.lr_scheduler": """
        ChainedScheduler ConstantLR CosineAnnealingLR CosineAnnealingWarmRestarts CyclicLR ExponentialLR
        LambdaLR LinearLR MultiStepLR MultiplicativeLR OneCycleLR PolynomialLR ReduceLROnPlateau SequentialLR
        StepLR
    """,
    "keras": "Sequential",
    "keras.layers": """
        Activation ActivityRegularization Add AdditiveAttention AlphaDropout Attention Average
        AveragePooling1D AveragePooling2D AveragePooling3D BatchNormalization Bidirectional CategoryEncoding
        CenterCrop Concatenate Conv1D Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D
        ConvLSTM2D ConvLSTM3D Cropping1D Cropping2D Cropping3D Dense DepthwiseConv1D DepthwiseConv2D
        Discretization Dot
        Dropout ELU EinsumDense Embedding Flatten GRU GRUCell GaussianDropout GaussianNoise
        GlobalAveragePooling1D GlobalAveragePooling2D GlobalAveragePooling3D GlobalMaxPooling1D
        GlobalMaxPooling2D GlobalMaxPooling3D GroupNormalization Identity InputLayer LSTM LSTMCell
        LayerNormalization LeakyReLU Masking MaxPooling1D MaxPooling2D MaxPooling3D Maximum Minimum
        MultiHeadAttention Multiply Normalization PReLU Permute RMSNormalization RNN RandomBrightness
        RandomContrast RandomCrop RandomFlip RandomRotation RandomTranslation RandomZoom ReLU RepeatVector
        Rescaling Reshape Resizing SeparableConv1D SeparableConv2D SimpleRNN SimpleRNNCell Softmax
        SpatialDropout1D
        SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells Subtract TimeDistributed
        UnitNormalization UpSampling1D UpSampling2D UpSampling3D ZeroPadding1D ZeroPadding2D ZeroPadding3D
    """,
    "sklearn.discriminant_analysis": "LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis",
    "sklearn.dummy": "DummyClassifier DummyRegressor",
    "sklearn.ensemble": """
        ExtraTreesClassifier ExtraTreesRegressor GradientBoostingClassifier GradientBoostingRegressor
        HistGradientBoostingClassifier HistGradientBoostingRegressor RandomForestClassifier
        RandomForestRegressor
    """,
    "sklearn.linear_model": """
        BayesianRidge ElasticNet HuberRegressor Lasso LinearRegression LogisticRegression Perceptron
        PoissonRegressor Ridge RidgeClassifier SGDClassifier SGDRegressor
    """,
    "sklearn.naive_bayes": "BernoulliNB ComplementNB GaussianNB MultinomialNB",
    "sklearn.neighbors": "KNeighborsClassifier KNeighborsRegressor NearestCentroid",
    "sklearn.neural_network": "MLPClassifier MLPRegressor",
    "sklearn.preprocessing": "MinMaxScaler Normalizer RobustScaler StandardScaler",
    "sklearn.svm": "LinearSVC LinearSVR SVC SVR",
    "sklearn.tree": "DecisionTreeClassifier DecisionTreeRegressor",
    "torchmetrics": """
        AUROC Accuracy AveragePrecision CalibrationError CohenKappa ConfusionMatrix CosineSimilarity
        ExactMatch ExplainedVariance F1Score FBetaScore HammingDistance HingeLoss JaccardIndex KLDivergence
        LogCoshError MatthewsCorrCoef MeanAbsoluteError MeanAbsolutePercentageError MeanSquaredError
        MeanSquaredLogError PearsonCorrCoef Precision PrecisionRecallCurve R2Score ROC Recall
        SpearmanCorrCoef Specificity StatScores SymmetricMeanAbsolutePercentageError TweedieDevianceScore
    """,
    "manyfit.datasets": "Digits",
    "manyfit.feeders": """
        Feeders FixedLenFeature ImageFeature MemorySamplesFeeder RawFeature SequenceFeature
        TFRecordExamplesFeeder VarLenFeature
    """,
    "manyfit.feeders.registry.toy": "DebugToyModel",
    "manyfit.metrics": "absolute_error accuracy binary_accuracy squared_error top_k_accuracy",
    "manyfit.pipeline": "ComponentData evaluator model_builder",
}
# The same classes, as exported by the module of their domain.
_CLASSIFICATION: Final = (
    "AUROC Accuracy AveragePrecision CohenKappa ConfusionMatrix F1Score FBetaScore Precision Recall"
)
_REGRESSION: Final = "MeanAbsoluteError MeanSquaredError MeanSquaredLogError R2Score PearsonCorrCoef"

ALLOWED: Final = frozenset(
    f"{module}.{name}"
    for module, names in (
        *_NAMES.items(),
        ("torchmetrics.classification", _CLASSIFICATION),
        ("torchmetrics.regression", _REGRESSION),
    )
    for name in names.split()
)

KERAS_CLASSES: Final = frozenset(
    {
        *(name for name in ALLOWED if name.startswith("keras.")),
        "keras.DTypePolicy",
        "keras.src.models.functional.Functional",
    }
)
"""Classes that a `.keras` file may contain, in addition to the modules below."""
KERAS_PARTS: Final = (
    "keras.constraints",
    "keras.initializers",
    "keras.losses",
    "keras.metrics",
    "keras.optimizers",
    "keras.optimizers.schedules",
    "keras.regularizers",
    "keras.src.backend.torch.optimizers",
    "keras.src.ops.nn",
    "keras.src.ops.numpy",
)
"""Modules of which a `.keras` file may contain every class, but no function."""
KERAS_DATA: Final = ("__bytes__", "__ellipsis__", "__keras_tensor__", "__numpy__", "__slice__", "__tensor__")
"""Names in a `.keras` file that denote values."""

REFUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "manyfit.feeders.TFRecordExamplesFeeder": ("auto_generate_meta", "cache"),
}
"""Parameters of allowed classes that would write a file."""

NO_MAPPINGS: Final = "keras."
"""Package whose classes interpret mappings as descriptions of further objects, and import them."""

LOCAL: Final = "manyfit.feeders."
"""Package whose classes read files, and would also read them from a URL."""

BUILDING_BLOCKS: Final = frozenset(
    {
        "manyfit.data.dataset.DatasetSource",
        "manyfit.data.stream.IterableSource",
        "manyfit.data.dataset.Limited",
        "manyfit.data.feeders.Feeders",
        "manyfit.data.memory_feeder.MemorySamplesFeeder",
        "manyfit.data.source.ArraySource",
        "manyfit.data.tfrecord.features.FixedLenFeature",
        "manyfit.data.tfrecord.features.ImageFeature",
        "manyfit.data.tfrecord.features.RawFeature",
        "manyfit.data.tfrecord.features.SequenceFeature",
        "manyfit.data.tfrecord.features.VarLenFeature",
        "manyfit.data.tfrecord_feeder.TFRecordExamplesFeeder",
        "manyfit.data.weighted.ClassWeighted",
        "manyfit.datasets.digits.Digits",
        "manyfit.feeders.registry.toy.DebugToyModel",
        "manyfit.trainers.stored.StoredTensors",
    }
)
"""Classes of manyfit that a config may nest without an annotation. None of the store: those write files."""
